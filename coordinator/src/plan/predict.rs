//! What a plan would do.

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::model::BlockCost;
use longhaul_common::pipeline::{Costs, Pipeline, Place, Trace, Work, trace};
use longhaul_common::units::Bytes;

use super::{Exchange, Link, Plan, Topology, Workload};

/// θ, its gradient and two moments.
const TRAINED_BYTES: f64 = 16.0;
/// θ_g, the residual, and the update on its way.
const SYNCHRONISED_BYTES: f64 = 12.0;
/// Round trips of an exchange: contributions there, results back, and half of one for what waits at the owner.
const ROUND_TRIPS: f64 = 1.5;

/// What a plan would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// A step, in seconds: what follows, as far as it is not hidden.
    pub step_s: f64,
    /// The slowest replica's forward and backward passes, with what it waits for in its pipeline.
    pub compute_s: f64,
    /// The exchange of the slowest sync group.
    pub sync_s: f64,
    /// Of the ranks' time in the slowest replica, what is idle in its pipeline.
    pub bubble: f64,
    /// Tokens trained on in a second.
    pub tokens_per_s: f64,
    /// By rank: the most that a device of it needs.
    pub memory_bytes: Vec<f64>,
    /// What each pair of sites carries in a step, in each direction.
    pub links: Vec<LinkLoad>,
}

/// What a pair of sites carries in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLoad {
    /// The sites' places, the lower one first.
    pub between: (usize, usize),
    /// Activations and their gradients, in bytes, there.
    pub pipeline_bytes: f64,
    /// Updates and results, in bytes, there.
    pub sync_bytes: f64,
}

/// Why a plan is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unfit {
    /// Something does not fit.
    #[error("rank {rank} needs {}, and has {}", Bytes(*needed_bytes as u64), Bytes(*bytes as u64))]
    Memory {
        /// Of which rank.
        rank: usize,
        /// What it would need.
        needed_bytes: f64,
        /// What its smallest device has.
        bytes: f64,
    },
    /// No schedule goes with the numbers.
    #[error("{0}")]
    Schedule(String),
}

/// What `plan` would do on these machines.
///
/// # Errors
/// The plan does not fit.
pub fn predict(topology: &Topology, work: &Workload, plan: &Plan) -> Result<Prediction, Unfit> {
    let lists = plan.pipeline.tasks().map_err(|error| Unfit::Schedule(error.to_string()))?;
    let crossings = crossings(plan);
    let mut slowest: Option<Trace> = None;
    for replica in 0..plan.replicas.len() {
        let costs = ReplicaCosts { topology, work, plan, replica, crossings: &crossings };
        let traced =
            trace(&plan.pipeline, &lists, &costs).map_err(|stuck| Unfit::Schedule(stuck.to_string()))?;
        if slowest.as_ref().is_none_or(|slowest| traced.step_s > slowest.step_s) {
            slowest = Some(traced);
        }
    }
    let slowest = slowest.ok_or_else(|| Unfit::Schedule("there is no replica".to_owned()))?;
    let memory_bytes = memory(topology, work, plan, &slowest.kept_most)?;
    let compute_s = slowest.step_s;
    let groups = Groups::of(work, plan);
    let rates = Rates { topology, groups: &groups };
    let exchange = rates.following(work.exchange, compute_s);
    let sync_s = rates.exchange_s(exchange);
    let step_s = together(exchange, compute_s, sync_s, plan.pipeline.micro_batches);
    let tokens = f64::from(work.batch) * f64::from(work.sequence);
    Ok(Prediction {
        step_s,
        compute_s,
        sync_s,
        bubble: slowest.bubble(),
        tokens_per_s: tokens / step_s,
        memory_bytes,
        links: loads(topology, work, plan, &rates.bytes(exchange)),
    })
}

/// A step with its exchange.
fn together(exchange: Exchange, compute_s: f64, sync_s: f64, micro_batches: u32) -> f64 {
    if exchange.overlaps {
        return compute_s.max(sync_s);
    }
    // Two thirds of a micro-batch are its backward pass.
    let streamed_s = if exchange.streams { compute_s / f64::from(micro_batches) * 2.0 / 3.0 } else { 0.0 };
    compute_s + (sync_s - streamed_s).max(0.0)
}

/// By pair of sites: how many replicas cross it between neighbouring ranks.
fn crossings(plan: &Plan) -> BTreeMap<(usize, usize), u32> {
    let mut crossings = BTreeMap::new();
    for replica in &plan.replicas {
        let mut pairs: Vec<_> = replica
            .iter()
            .zip(replica.iter().cycle().skip(1))
            .map(|(a, b)| pair(a.site, b.site))
            .filter(|(a, b)| a != b)
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.into_iter().for_each(|pair| *crossings.entry(pair).or_insert(0) += 1);
    }
    crossings
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// One replica's tasks and ways.
struct ReplicaCosts<'a> {
    topology: &'a Topology,
    work: &'a Workload,
    plan: &'a Plan,
    replica: usize,
    crossings: &'a BTreeMap<(usize, usize), u32>,
}

impl ReplicaCosts<'_> {
    fn way(&self, from: u32, to: u32) -> (Link, u32) {
        let site = |rank: u32| self.plan.replicas[self.replica][rank as usize].site;
        let (a, b) = (site(from), site(to));
        let sharing = self.crossings.get(&pair(a, b)).copied().unwrap_or(1);
        (self.topology.link(a, b), sharing)
    }
}

impl Costs for ReplicaCosts<'_> {
    fn task_s(&self, place: Place) -> f64 {
        let stage = self.plan.pipeline.stage(place.rank, place.task.chunk);
        let held = held(self.work, &self.plan.stages[stage as usize]);
        let sum = |flops: fn(&BlockCost) -> u64| held.iter().map(flops).sum::<u64>() as f64;
        let forward = sum(|block| block.forward_flops_per_token);
        let backward = sum(|block| block.backward_flops_per_token);
        let again = if self.plan.recompute { forward } else { 0.0 };
        let flops = match place.task.work {
            Work::Forward => forward,
            Work::Backward => backward + again,
            Work::BackwardInput => backward / 2.0 + again,
            Work::BackwardWeight => backward / 2.0,
        };
        let device = self.topology.device(self.plan.replicas[self.replica][place.rank as usize]);
        flops * self.work.micro_tokens() / device.flops_per_s
    }

    fn sending_s(&self, from: u32, to: u32) -> f64 {
        let (link, sharing) = self.way(from, to);
        boundary_bytes(self.work) / link.bytes_per_s * f64::from(sharing)
    }

    fn latency_s(&self, from: u32, to: u32) -> f64 {
        self.way(from, to).0.round_trip_s / 2.0
    }
}

fn held<'a>(work: &'a Workload, stage: &Range<u32>) -> &'a [BlockCost] {
    work.blocks.get(stage.start as usize..stage.end as usize).unwrap_or_default()
}

/// What a micro-batch hands from one stage to the next.
pub(super) fn boundary_bytes(work: &Workload) -> f64 {
    let block = work.blocks.first();
    block.map_or(0.0, |block| block.boundary_bytes_per_token as f64 * work.micro_tokens())
}

/// By rank, with activations of so many micro-batches and chunks at a time.
fn memory(topology: &Topology, work: &Workload, plan: &Plan, kept: &[u32]) -> Result<Vec<f64>, Unfit> {
    let ranks = plan.pipeline.ranks as usize;
    let mut needed = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        let stages = plan.stages.iter().skip(rank).step_by(ranks);
        let chunks: Vec<f64> = stages.clone().map(|stage| kept_bytes(work, stage, plan.recompute)).collect();
        let fixed: f64 = stages.map(|stage| fixed_bytes(work, stage)).sum();
        // The largest chunk, as if all that are kept were of it.
        let activations =
            chunks.into_iter().fold(0.0, f64::max) * f64::from(kept.get(rank).copied().unwrap_or(0));
        let total = fixed + activations;
        let devices = plan.replicas.iter().filter_map(|replica| replica.get(rank));
        let bytes = devices.map(|&id| topology.device(id).memory_bytes).fold(f64::INFINITY, f64::min);
        if total > bytes {
            return Err(Unfit::Memory { rank, needed_bytes: total, bytes });
        }
        needed.push(total);
    }
    Ok(needed)
}

/// What a stage keeps between steps.
pub(super) fn fixed_bytes(work: &Workload, stage: &Range<u32>) -> f64 {
    let parameters: u64 = held(work, stage).iter().map(|block| block.parameters).sum();
    parameters as f64 * (TRAINED_BYTES + SYNCHRONISED_BYTES)
}

/// What a stage keeps of a micro-batch between its forward and its backward pass.
pub(super) fn kept_bytes(work: &Workload, stage: &Range<u32>, recompute: bool) -> f64 {
    let blocks = held(work, stage);
    let whole = |block: &BlockCost| block.activation_bytes_per_token as f64;
    let per_token = if recompute {
        let largest = blocks.iter().map(whole).fold(0.0, f64::max);
        largest + blocks.iter().map(|block| block.boundary_bytes_per_token as f64).sum::<f64>()
    } else {
        blocks.iter().map(whole).sum()
    };
    per_token * work.micro_tokens()
}

/// The holders of each stage.
struct Groups(Vec<Group>);

struct Group {
    parameters: f64,
    /// Sites that hold it.
    sites: Vec<usize>,
}

impl Groups {
    fn of(work: &Workload, plan: &Plan) -> Self {
        let ranks = plan.pipeline.ranks as usize;
        let group = |(stage, range): (usize, &Range<u32>)| {
            let holders = plan.replicas.iter().filter_map(|replica| replica.get(stage % ranks));
            let mut sites: Vec<usize> = holders.map(|id| id.site).collect();
            sites.sort_unstable();
            sites.dedup();
            let parameters: u64 = held(work, range).iter().map(|block| block.parameters).sum();
            Group { parameters: parameters as f64, sites }
        };
        Self(plan.stages.iter().enumerate().map(group).collect())
    }
}

struct Rates<'a> {
    topology: &'a Topology,
    groups: &'a Groups,
}

impl Rates<'_> {
    /// Bytes of a step in each direction, by pair of sites. All directions of a pair carry the same, as owners are spread evenly.
    fn bytes(&self, exchange: Exchange) -> BTreeMap<(usize, usize), f64> {
        let mut bytes = BTreeMap::new();
        for Group { parameters, sites } in &self.groups.0 {
            let count = sites.len() as f64;
            let results = if exchange.side_by_side { exchange.up_bits } else { exchange.down_bits / count };
            let each = parameters * (exchange.up_bits / count + results) / 8.0;
            for (at, &a) in sites.iter().enumerate() {
                sites[at + 1..].iter().for_each(|&b| *bytes.entry((a, b)).or_insert(0.0) += each);
            }
        }
        bytes
    }

    fn exchange_s(&self, exchange: Exchange) -> f64 {
        let took = |(&(a, b), bytes): (&(usize, usize), &f64)| {
            let link = self.topology.link(a, b);
            bytes / link.bytes_per_s + ROUND_TRIPS * link.round_trip_s / exchange.every
        };
        self.bytes(exchange).iter().map(took).fold(0.0, f64::max)
    }

    /// Where bits follow the link: as many as go with a step that computes for so long.
    fn following(&self, exchange: Exchange, compute_s: f64) -> Exchange {
        let Some(most) = exchange.most_bits else { return exchange };
        let with = |bits: f64| Exchange { up_bits: bits, down_bits: bits, ..exchange };
        let least = exchange.up_bits;
        // Bytes are in proportion to bits, and round trips are not.
        let (one, none) = (self.exchange_s(with(1.0)), self.exchange_s(with(0.0)));
        let room = if one > none { (compute_s - none) / (one - none) } else { most };
        with(room.clamp(least, most.max(least)))
    }
}

/// What crosses between sites.
fn loads(
    topology: &Topology,
    work: &Workload,
    plan: &Plan,
    sync: &BTreeMap<(usize, usize), f64>,
) -> Vec<LinkLoad> {
    let mut loads: BTreeMap<(usize, usize), LinkLoad> = BTreeMap::new();
    let mut add = |between: (usize, usize), pipeline_bytes: f64, sync_bytes: f64| {
        let none = LinkLoad { between, pipeline_bytes: 0.0, sync_bytes: 0.0 };
        let load = loads.entry(between).or_insert(none);
        load.pipeline_bytes += pipeline_bytes;
        load.sync_bytes += sync_bytes;
    };
    let Pipeline { micro_batches, chunks, ranks, .. } = plan.pipeline;
    for replica in &plan.replicas {
        for stage in 1..chunks * ranks {
            let site = |stage: u32| replica[(stage % ranks) as usize].site;
            let between = pair(site(stage - 1), site(stage));
            if between.0 != between.1 {
                add(between, boundary_bytes(work) * f64::from(micro_batches), 0.0);
            }
        }
    }
    sync.iter().for_each(|(&between, &bytes)| add(between, 0.0, bytes));
    debug_assert!(loads.keys().all(|&(a, b)| a < b && b < topology.sites.len()));
    loads.into_values().collect()
}

#[cfg(test)]
mod tests;
