//! Predicts the seconds of a step and the load of links under a plan.

mod exchange;

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::model::BlockCost;
use longhaul_common::pipeline::{Costs, RankTask, Trace, Work, trace};
use longhaul_proto::transport::INITIAL_WINDOW_BYTES;
use serde::{Deserialize, Serialize};

use self::exchange::Ways;
use super::memory::Needs;
use super::{DeviceId, Exchange, Link, Plan, Topology, Unfit, Workload};

/// Round trips of an exchange: contributions there, results back, and half of one for what waits at the owner.
const ROUND_TRIPS: f64 = 1.5;

/// What a packet carries of a frame, in bytes: of 1452 that most ways pass, what headers and encryption leave (`docs/benchmarks/transport.md` has 0.958 of the rate as the most that arrives).
const PACKET_BYTES: f64 = 1391.0;

/// What a message between ranks takes besides its way and its bytes, in seconds: the excess of each transfer on the critical path where computing was simulated
/// (`docs/benchmarks/pipeline.md`, *Bubbles*).
const HANDED_ON_S: f64 = 1.8e-3;

/// Windows that a connection sends in a round trip, at most (quinn-proto's pacer, after RFC 9002),
const PACING_GAIN: f64 = 1.25;
/// and how many times as large its window is as what it has brought in a round trip, until the path was full once (`proto::transport::congestion`).
const WINDOW_GAIN: f64 = 2.0;

/// What a plan would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// A step, in seconds: what follows, as far as it is not hidden.
    pub step_s: f64,
    /// The slowest replica's forward and backward passes, with what it waits for in its pipeline.
    pub compute_s: f64,
    /// Of that, what members of a tensor group sum.
    pub sums_s: f64,
    /// The exchange of the slowest sync group.
    pub sync_s: f64,
    /// By so much computing takes longer beside it, where it takes of the same cores.
    #[serde(default)]
    pub coding_s: f64,
    /// Of the ranks' time in the slowest replica, what is idle in its pipeline.
    pub bubble: f64,
    /// Tokens trained on in a second.
    pub tokens_per_s: f64,
    /// By rank: the most that a device of it needs,
    pub memory_bytes: Vec<f64>,
    /// and what the machine around it needs besides, where it is a GPU; zero where none is.
    pub host_memory_bytes: Vec<f64>,
    /// What each pair of sites carries in a step, in each direction.
    pub links: Vec<LinkLoad>,
}

/// What a pair of sites carries in a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkLoad {
    /// The sites' places, the lower one first.
    pub between: (usize, usize),
    /// Activations and their gradients, in bytes, there.
    pub pipeline_bytes: f64,
    /// Updates and results, in bytes, there.
    pub sync_bytes: f64,
}

/// What `plan` would do on these machines.
///
/// # Errors
/// The plan does not fit.
pub fn predict(topology: &Topology, work: &Workload, plan: &Plan) -> Result<Prediction, Unfit> {
    let (compute_s, replica, slowest) = trace_slowest(topology, work, plan)?;
    let sums_s = sums_s(topology, work, plan, replica);
    let needs = Needs::of(topology, work, plan, &slowest.held_most)?;
    let StepTime { step_s, sync_s, coding_s, links } =
        step_with(topology, work, plan, (work.exchange, 1.0), compute_s);
    let tokens = f64::from(work.batch) * f64::from(work.sequence);
    Ok(Prediction {
        step_s,
        compute_s,
        sums_s,
        sync_s,
        coding_s,
        bubble: slowest.bubble(),
        tokens_per_s: tokens / step_s,
        memory_bytes: needs.device,
        host_memory_bytes: needs.host,
        links,
    })
}

/// The replica that computes for longest, which all wait for: its time, its place, and what it does.
///
/// # Errors
/// No schedule goes with the numbers, or there is no replica.
pub(super) fn trace_slowest(
    topology: &Topology,
    work: &Workload,
    plan: &Plan,
) -> Result<(f64, usize, Trace), Unfit> {
    let mut slowest: Option<(f64, usize, Trace)> = None;
    trace_replicas(topology, work, plan, |replica, took, traced| {
        if let Some(traced) = traced
            && slowest.as_ref().is_none_or(|(slowest, ..)| took > *slowest)
        {
            slowest = Some((took, replica, traced));
        }
    })?;
    slowest.ok_or_else(|| Unfit::Schedule("there is no replica".to_owned()))
}

/// A step with its exchange.
pub(super) struct StepTime {
    pub step_s: f64,
    pub sync_s: f64,
    /// By so much computing takes longer, as exchanges take of the same cores.
    pub coding_s: f64,
    pub links: Vec<LinkLoad>,
}

/// A step that computes for so long and exchanges this; where bits follow the link, the exchange may take as long as so many steps.
pub(super) fn step_with(
    topology: &Topology,
    work: &Workload,
    plan: &Plan,
    (exchange, window_steps): (Exchange, f64),
    compute_s: f64,
) -> StepTime {
    let ways = Ways::of(topology, work, plan);
    let exchange = ways.following(exchange, compute_s * window_steps);
    let sync_s = ways.exchange_s(exchange);
    let coding_s = ways.coding_s(exchange);
    let step_s = together(exchange, compute_s, (sync_s, coding_s), plan.pipeline.micro_batches);
    StepTime { step_s, sync_s, coding_s, links: ways.loads(exchange) }
}

/// A bound from below of a plan's step, in seconds, where its slowest rank computes for so long: as if nobody waited in the pipeline, and with the least bits.
pub(super) fn shortest_step_s(topology: &Topology, work: &Workload, plan: &Plan, busy_s: f64) -> f64 {
    let ways = Ways::of(topology, work, plan);
    let exchange = work.exchange;
    let both = (ways.exchange_s(exchange), ways.coding_s(exchange));
    together(exchange, busy_s, both, plan.pipeline.micro_batches)
}

/// What each replica computes for in a step, in seconds, with what it waits for in its own pipeline.
///
/// # Errors
/// No schedule goes with the numbers.
pub fn paces(topology: &Topology, work: &Workload, plan: &Plan) -> Result<Vec<f64>, Unfit> {
    let mut paces = vec![0.0; plan.replicas.len()];
    trace_replicas(topology, work, plan, |replica, took, _| paces[replica] = took)?;
    Ok(paces)
}

/// Follows the schedule in each replica, and tells what a step takes there; of those that are alike, the first alone is followed.
fn trace_replicas(
    topology: &Topology,
    work: &Workload,
    plan: &Plan,
    mut tell: impl FnMut(usize, f64, Option<Trace>),
) -> Result<(), Unfit> {
    let lists = plan.pipeline.tasks().map_err(|error| Unfit::Schedule(error.to_string()))?;
    let (crossings, flops) = (crossings(plan), flops_of(work, plan));
    let mut alike: BTreeMap<Vec<(usize, u64)>, f64> = BTreeMap::new();
    for replica in 0..plan.replicas.len() {
        let costs = ReplicaCosts { topology, work, plan, replica, crossings: &crossings, flops: &flops };
        let signature = costs.signature();
        if let Some(&took) = alike.get(&signature) {
            tell(replica, took, None);
            continue;
        }
        let traced =
            trace(&plan.pipeline, &lists, &costs).map_err(|stuck| Unfit::Schedule(stuck.to_string()))?;
        let took = traced.step_s + costs.ends_s();
        alike.insert(signature, took);
        tell(replica, took, Some(traced));
    }
    Ok(())
}

/// What the members of a tensor group of a replica sum in a step: of the one that sums for longest.
fn sums_s(topology: &Topology, work: &Workload, plan: &Plan, replica: usize) -> f64 {
    let ranks = plan.pipeline.ranks as usize;
    let ways = f64::from(plan.pipeline.micro_batches) * if plan.recompute { 3.0 } else { 2.0 };
    let of_rank = |(rank, group): (usize, &DeviceId)| {
        let stages = plan.stages.iter().skip(rank).step_by(ranks);
        ways * stages.map(|stage| way_s(topology, work, plan, stage, group.site)).sum::<f64>()
    };
    plan.replicas[replica].iter().enumerate().map(of_rank).fold(0.0, f64::max)
}

/// What a tensor group of this site sums of a micro-batch on its way through a stage, in one direction.
fn way_s(topology: &Topology, work: &Workload, plan: &Plan, stage: &Range<u32>, site: usize) -> f64 {
    let tokens = work.micro_tokens(plan.replicas.len());
    work.sums.as_ref().map_or(0.0, |sums| sums.way_s(stage, tokens, topology.link(site, site)))
}

/// A step with its exchange, which takes so long, and by so much longer what is computed beside it.
fn together(exchange: Exchange, compute_s: f64, (sync_s, coding_s): (f64, f64), micro_batches: u32) -> f64 {
    if exchange.overlaps {
        return (compute_s + coding_s).max(sync_s);
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
            // Only with several chunks does the last rank hand on to the first.
            .take(if plan.pipeline.chunks > 1 { replica.len() } else { replica.len() - 1 })
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
    /// By stage.
    flops: &'a [StageFlops],
}

/// FLOPs of a token in a stage.
struct StageFlops {
    forward: f64,
    backward: f64,
    /// Of those backwards, what may be put off.
    weight: f64,
}

/// By stage.
fn flops_of(work: &Workload, plan: &Plan) -> Vec<StageFlops> {
    let sum =
        |blocks: &[BlockCost], flops: fn(&BlockCost) -> u64| blocks.iter().map(flops).sum::<u64>() as f64;
    let of = |stage: &Range<u32>| {
        let blocks = held(work, stage);
        StageFlops {
            forward: sum(blocks, |block| block.forward_flops_per_token),
            backward: sum(blocks, |block| block.backward_flops_per_token),
            weight: sum(blocks, |block| block.weight_flops_per_token),
        }
    };
    plan.stages.iter().map(of).collect()
}

impl ReplicaCosts<'_> {
    /// What replicas have in common that take as long.
    fn signature(&self) -> Vec<(usize, u64)> {
        let ranks = self.plan.replicas[self.replica].iter();
        ranks.map(|&id| (id.site, self.topology.device(id).flops_per_s.to_bits())).collect()
    }

    fn tokens(&self) -> f64 {
        self.work.micro_tokens(self.plan.replicas.len())
    }

    /// What a step takes besides its tasks: the norm of the gradient goes from each rank to all others, and a tied embedding there and its gradient back.
    fn ends_s(&self) -> f64 {
        let ranks = self.plan.pipeline.ranks;
        let latency = |rank| self.way(0, rank).0.round_trip_s / 2.0;
        let norm_s = (1..ranks).map(latency).fold(0.0, f64::max);
        if ranks < 2 {
            return 0.0;
        }
        let (link, sharing) = self.way(0, ranks - 1);
        let tied = (tied_bytes(self.work) + self.work.tied_gradient_bytes) * copies_sent(self.work);
        let tied_s = tied / link.bytes_per_s * f64::from(sharing) + link.round_trip_s;
        norm_s + if self.work.tied_values > 0 { tied_s } else { 0.0 }
    }

    fn way(&self, from: u32, to: u32) -> (Link, u32) {
        let site = |rank: u32| self.plan.replicas[self.replica][rank as usize].site;
        let (a, b) = (site(from), site(to));
        let sharing = self.crossings.get(&pair(a, b)).copied().unwrap_or(1);
        (self.topology.link(a, b), sharing)
    }
}

impl Costs for ReplicaCosts<'_> {
    fn task_s(&self, place: RankTask) -> f64 {
        let stage = self.plan.pipeline.stage(place.rank, place.task.chunk);
        let &StageFlops { forward, backward, weight } = &self.flops[stage as usize];
        let again = if self.plan.recompute { forward } else { 0.0 };
        let flops = match place.task.work {
            Work::Forward => forward,
            Work::Backward => backward + again,
            Work::BackwardInput => backward - weight + again,
            Work::BackwardWeight => weight,
        };
        let sums = match place.task.work {
            Work::Forward => 1.0,
            Work::Backward | Work::BackwardInput if self.plan.recompute => 2.0,
            Work::Backward | Work::BackwardInput => 1.0,
            Work::BackwardWeight => 0.0,
        };
        let id = self.plan.replicas[self.replica][place.rank as usize];
        let blocks = &self.plan.stages[stage as usize];
        let sums_s = sums * way_s(self.topology, self.work, self.plan, blocks, id.site);
        flops * self.tokens() / self.topology.device(id).flops_per_s + sums_s
    }

    fn sending_s(&self, from: u32, to: u32) -> f64 {
        let (link, sharing) = self.way(from, to);
        self.sent_bytes(from, to) / link.bytes_per_s * f64::from(sharing)
    }

    /// Half a round trip, what a message takes, and what its sender holds back of it; and one round trip more where a packet of it is lost, which is sent again when those after
    /// it were heard of. That happens at random, and here it is its mean: where many micro-batches are under way it costs nothing, and where each is waited for all of it, as it should be, but what chance makes unequal costs more than its mean does.
    fn latency_s(&self, from: u32, to: u32) -> f64 {
        let (link, _) = self.way(from, to);
        let held_back_s = held_back_s(link, self.sent_bytes(from, to));
        link.round_trip_s * (0.5 + self.again(from, to)) + HANDED_ON_S + held_back_s
    }
}

impl ReplicaCosts<'_> {
    /// Bytes of a micro-batch between two ranks; of several boundaries, the widest.
    fn sent_bytes(&self, from: u32, to: u32) -> f64 {
        let ranks = self.plan.pipeline.ranks;
        let rank = |stage: usize| stage as u32 % ranks;
        let is_between = |stage: usize| [(from, to), (to, from)].contains(&(rank(stage), rank(stage + 1)));
        let stages = self.plan.stages.iter().enumerate().filter(|(stage, _)| is_between(*stage));
        stages.map(|(_, blocks)| boundary_bytes(self.work, blocks, self.tokens())).fold(0.0, f64::max)
    }

    /// How probable it is that a packet of what goes from one rank to another is lost.
    fn again(&self, from: u32, to: u32) -> f64 {
        let site = |rank: u32| self.plan.replicas[self.replica][rank as usize].site;
        let loss = self.topology.loss(site(from), site(to));
        if loss == 0.0 {
            return 0.0;
        }
        let packets = (self.sent_bytes(from, to) / PACKET_BYTES).ceil();
        1.0 - (1.0 - loss).powf(packets)
    }
}

/// A message that comes after a pause leaves at the pace of its connection's window, in place of the link's: by so much later, in seconds. The window is what connections begin
/// with at least, or else twice what was brought in a round trip and the time that the message took to leave (`docs/benchmarks/transport.md`, *Bursts*).
fn held_back_s(link: Link, bytes: f64) -> f64 {
    let at_first = bytes / (PACING_GAIN * INITIAL_WINDOW_BYTES as f64);
    let by_itself = 1.0 / (PACING_GAIN * WINDOW_GAIN - 1.0);
    (link.round_trip_s * at_first.min(by_itself) - bytes / link.bytes_per_s).max(0.0)
}

pub(super) fn held<'a>(work: &'a Workload, stage: &Range<u32>) -> &'a [BlockCost] {
    work.blocks.get(stage.start as usize..stage.end as usize).unwrap_or_default()
}

/// What a micro-batch of so many tokens hands from a stage to the next.
pub(super) fn boundary_bytes(work: &Workload, stage: &Range<u32>, tokens: f64) -> f64 {
    work.boundary_bytes_per_token(stage) * tokens * copies_sent(work)
}

/// Each member of a tensor group sends what it hands on to its like in the next one.
fn copies_sent(work: &Workload) -> f64 {
    work.sums.as_ref().map_or(1.0, |sums| f64::from(sums.members()))
}

pub(super) fn tied_bytes(work: &Workload) -> f64 {
    4.0 * work.tied_values as f64
}

#[cfg(test)]
mod tests;
