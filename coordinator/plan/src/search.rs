//! Which plans are looked at, and which is best.

mod cut;

use std::collections::BTreeSet;

use longhaul_common::memory::{Memory, PerMemory, StageBytes};
use longhaul_common::pipeline::{Pipeline, PipelineSchedule};
use serde::{Deserialize, Serialize};

use super::predict::shortest_step_s;
use super::unfit::closer;
use super::{DeviceId, GroupSums, NoPlan, Plan, Prediction, Topology, Unfit, Workload, predict};
use cut::Cut;

/// With more devices than these, not all rows of them are looked at.
const EXACT_DEVICES_MAX: usize = 4;
/// Relative difference below which two steps count as equally fast.
pub(super) const CLOSE: f64 = 1e-3;
/// Plans reported besides the best one.
const RUNNERS_UP: usize = 4;
/// Chunks of each rank that are tried.
const CHUNKS: [u32; 2] = [1, 2];
/// A plan whose step is longer than the fastest by this factor is not examined further: it would be neither chosen nor reported.
const FAR_SLOWER: f64 = 2.0;

/// A plan and its prediction.
pub type Candidate = (Plan, Prediction);

/// The best plan, and how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The best plan.
    pub best: Candidate,
    /// and next to it, with other numbers of replicas, ranks or chunks.
    pub runners_up: Vec<Candidate>,
    /// Where the best one divides backward passes: the best with the same numbers that does not, if one fits.
    pub undivided: Option<Candidate>,
    /// Plans that were looked at, and fit.
    pub considered: usize,
    /// Plans that did not fit.
    pub unfit: usize,
    /// Members of the tensor group that has the place of a device; 1: devices are workers.
    pub tensor: u32,
    /// The best plan with groups where this one has none, or without them where it has. None: none was looked at, or none fits.
    pub rival: Option<Rival>,
}

/// An alternative to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rival {
    /// Members of its tensor groups; 1: it has none.
    pub members: u32,
    /// Parts of a copy.
    pub stages: u32,
    /// Seconds of a step.
    pub step_s: f64,
}

/// The best plan for a run on these machines.
///
/// # Errors
/// No plan fits.
pub fn choose(topology: &Topology, work: &Workload) -> Result<Choice, NoPlan> {
    choose_among(topology, work, |_| true)
}

/// Returns the best plan whose replicas, each a row of devices by rank, are admitted.
///
/// # Errors
/// No plan fits.
pub fn choose_among(
    topology: &Topology,
    work: &Workload,
    admits: impl Fn(&[Vec<DeviceId>]) -> bool,
) -> Result<Choice, NoPlan> {
    let mut seen = BTreeSet::new();
    let mut looked = Looked { fitting: Vec::new(), unfit: 0, closest: None, fastest_s: f64::INFINITY };
    let most_ranks = work.blocks.len().min(topology.devices().count());
    for ranks in 1..=most_ranks {
        for replicas in rows(topology, ranks) {
            if !admits(&replicas) || !seen.insert(signature(topology, &replicas)) {
                continue;
            }
            for chunks in CHUNKS {
                let found = best_of(topology, work, &replicas, chunks, looked.fastest_s);
                found.into_iter().for_each(|found| looked.note(found));
            }
        }
    }
    let Looked { mut fitting, unfit, closest, .. } = looked;
    let considered = fitting.len();
    rank(&mut fitting);
    let undivided = fitting.first().and_then(|(best, _)| {
        let is_like = |(plan, _): &&Candidate| shape_of(plan) == shape_of(best) && !is_divided(plan);
        fitting.iter().find(is_like).filter(|_| is_divided(best)).cloned()
    });
    let mut fitting = fitting.into_iter();
    let Some(best) = fitting.next() else {
        let nothing = || Unfit::Schedule("the model has no blocks".to_owned());
        return Err(NoPlan {
            closest: closest.unwrap_or_else(nothing),
            fixed_bytes: PerMemory::of(|memory| fixed_bytes(work, memory)),
            memory_bytes: PerMemory::of(|memory| {
                topology.devices().filter_map(|id| topology.device(id).bytes_of(memory)).sum()
            }),
        });
    };
    let mut shapes = vec![shape_of(&best.0)];
    let mut runners_up = Vec::new();
    for candidate in fitting {
        if runners_up.len() < RUNNERS_UP && !shapes.contains(&shape_of(&candidate.0)) {
            shapes.push(shape_of(&candidate.0));
            runners_up.push(candidate);
        }
    }
    let tensor = work.sums.as_ref().map_or(1, GroupSums::members);
    Ok(Choice { best, runners_up, undivided, considered, unfit, tensor, rival: None })
}

/// Bytes of all parameters in a memory.
fn fixed_bytes(work: &Workload, memory: Memory) -> f64 {
    StageBytes::of(memory, &work.blocks, false, 0.0, work.parameter_bytes).fixed
}

/// Results of the examined plans.
struct Looked {
    fitting: Vec<Candidate>,
    unfit: usize,
    closest: Option<Unfit>,
    /// The shortest step.
    fastest_s: f64,
}

impl Looked {
    fn note(&mut self, found: Result<Candidate, Unfit>) {
        match found {
            Ok(candidate) => {
                self.fastest_s = self.fastest_s.min(candidate.1.step_s);
                self.fitting.push(candidate);
            }
            Err(reason) => {
                self.unfit += 1;
                self.closest = closer(self.closest.take(), reason);
            }
        }
    }
}

/// Whether backward passes are in two parts.
fn is_divided(plan: &Plan) -> bool {
    plan.pipeline.schedule == PipelineSchedule::ZeroBubble
}

/// Distinguishes plans in reports.
fn shape_of(plan: &Plan) -> (usize, u32, u32) {
    (plan.replicas.len(), plan.pipeline.ranks, plan.pipeline.chunks)
}

/// Sorts the best first: by time; equally fast ones by ranks, then by schedule, then by traffic between sites.
fn rank(candidates: &mut [Candidate]) {
    let fastest = candidates.iter().map(|(_, p)| p.step_s).fold(f64::INFINITY, f64::min);
    let bytes = |prediction: &Prediction| {
        prediction.links.iter().map(|load| load.pipeline_bytes + load.sync_bytes).sum::<f64>()
    };
    candidates.sort_by(|(a, of_a), (b, of_b)| {
        let is_close = |prediction: &Prediction| prediction.step_s <= fastest * (1.0 + CLOSE);
        match (is_close(of_a), is_close(of_b)) {
            (true, true) => (a.pipeline.ranks, a.pipeline.chunks, is_divided(a))
                .cmp(&(b.pipeline.ranks, b.pipeline.chunks, is_divided(b)))
                .then(bytes(of_a).total_cmp(&bytes(of_b))),
            _ => of_a.step_s.total_cmp(&of_b.step_s),
        }
    });
}

/// Ways to make replicas of so many ranks.
fn rows(topology: &Topology, ranks: usize) -> Vec<Vec<Vec<DeviceId>>> {
    let all: Vec<DeviceId> = topology.devices().collect();
    if all.len() <= EXACT_DEVICES_MAX {
        return permutations(&all).iter().flat_map(|row| all_cuts(row, ranks)).collect();
    }
    let mut ways = Vec::new();
    for used in without_the_slowest(topology) {
        let whole = used.len() / ranks * ranks;
        let used = &used[..whole];
        let replicas = whole / ranks;
        if replicas == 0 {
            continue;
        }
        ways.push(used.chunks(ranks).map(<[DeviceId]>::to_vec).collect());
        // Rank r of all replicas comes from the same part of the row.
        let across = |replica: usize| (0..ranks).map(|rank| used[rank * replicas + replica]).collect();
        ways.push((0..replicas).map(across).collect());
    }
    ways
}

/// Replicas out of a row, as many as there may be and all fewer.
fn all_cuts(row: &[DeviceId], ranks: usize) -> Vec<Vec<Vec<DeviceId>>> {
    let most = row.len() / ranks;
    (1..=most).map(|replicas| row.chunks(ranks).take(replicas).map(<[DeviceId]>::to_vec).collect()).collect()
}

fn permutations(devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    if devices.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = devices.to_vec();
        let first = rest.remove(at);
        permutations(&rest).into_iter().map(move |rest| std::iter::once(first).chain(rest).collect())
    };
    (0..devices.len()).flat_map(first).collect()
}

/// All devices site by site, the fastest site first, and the same without the slowest sites, one less each time.
fn without_the_slowest(topology: &Topology) -> Vec<Vec<DeviceId>> {
    let mut sites: Vec<usize> = (0..topology.sites.len()).collect();
    let speed =
        |site: usize| topology.sites[site].devices.iter().map(|device| device.flops_per_s).sum::<f64>();
    sites.sort_by(|&a, &b| speed(b).total_cmp(&speed(a)).then(a.cmp(&b)));
    let of = |site: &usize| topology.devices().filter(|id| id.site == *site).collect::<Vec<_>>();
    (1..=sites.len()).rev().map(|count| sites[..count].iter().flat_map(of).collect()).collect()
}

/// Key shared by divisions that differ only in the placement of equal devices, or in the order of replicas.
fn signature(topology: &Topology, replicas: &[Vec<DeviceId>]) -> Vec<Vec<DeviceId>> {
    let first_alike = |id: &DeviceId| {
        let devices = &topology.sites[id.site].devices;
        let device = devices.iter().position(|device| *device == devices[id.device]).unwrap_or(id.device);
        DeviceId { device, ..*id }
    };
    let mut signature: Vec<Vec<DeviceId>> =
        replicas.iter().map(|ranks| ranks.iter().map(first_alike).collect()).collect();
    signature.sort_unstable();
    signature
}

/// The cut and the limits that suit these replicas, for each schedule that goes with them and could make a step shorter than `fastest_s`. Nothing: they are too few for the chunks, or all would be far slower.
fn best_of(
    topology: &Topology,
    work: &Workload,
    replicas: &[Vec<DeviceId>],
    chunks: u32,
    fastest_s: f64,
) -> Vec<Result<Candidate, Unfit>> {
    let Ok(ranks) = u32::try_from(replicas.first().map_or(0, Vec::len)) else { return Vec::new() };
    let micro_batches = work.micro_batches(replicas.len());
    let has_groups = ranks > 1 && micro_batches.is_multiple_of(ranks);
    if ranks == 0 || chunks > 1 && !has_groups || (ranks * chunks) as usize > work.blocks.len() {
        return Vec::new();
    }
    let schedule = match chunks {
        1 => PipelineSchedule::OneForwardOneBackward,
        _ => PipelineSchedule::Interleaved,
    };
    let is_divisible = ranks > 1 && chunks == 1;
    let (mut plain, mut divided) = (Best::default(), Best::default());
    let (mut lacks, mut is_far_slower) = (None, false);
    for recompute in [false, true] {
        let pipeline = Pipeline { schedule, ranks, chunks, micro_batches, in_flight: Vec::new() };
        let cut = Cut { topology, work, replicas, pipeline: &pipeline, recompute };
        let cuts = cut.all();
        if cuts.is_empty() {
            lacks = closer(lacks, cut.lacks());
        }
        for stages in cuts {
            // A pipeline without bubbles takes as long. Where a plan is as fast as that already, dividing backward passes gains nothing.
            let busy_s = cut.busy_s(&stages);
            let pipeline = Pipeline { in_flight: cut.in_flight(&stages), ..pipeline.clone() };
            let plan = Plan { replicas: replicas.to_vec(), stages, pipeline, recompute };
            if shortest_step_s(topology, work, &plan, busy_s) > FAR_SLOWER * fastest_s {
                is_far_slower = true;
                continue;
            }
            plain.look_at(topology, work, &plan);
            if is_divisible && busy_s < fastest_s.min(plain.step_s()) {
                divided.look_at(topology, work, &in_two_parts(&plan));
            }
        }
    }
    let nothing = || Unfit::Schedule("there is no such cut".to_owned());
    let plain = match plain.found() {
        None if is_far_slower => None,
        None => Some(Err(lacks.unwrap_or_else(nothing))),
        found => found,
    };
    plain.into_iter().chain(divided.found()).collect()
}

/// The same plan with backward passes in two parts: gradients of weights fill waits. It has no limits of micro-batches in flight.
fn in_two_parts(plan: &Plan) -> Plan {
    let schedule = PipelineSchedule::ZeroBubble;
    let pipeline = Pipeline { schedule, in_flight: Vec::new(), ..plan.pipeline.clone() };
    Plan { pipeline, ..plan.clone() }
}

/// The best of some plans, and the shortfall of the one that comes closest to fitting.
#[derive(Default)]
struct Best {
    fastest: Option<Candidate>,
    reason: Option<Unfit>,
}

impl Best {
    fn look_at(&mut self, topology: &Topology, work: &Workload, plan: &Plan) {
        match predict(topology, work, plan) {
            Ok(prediction) if prediction.step_s < self.step_s() => {
                self.fastest = Some((plan.clone(), prediction));
            }
            Ok(_) => {}
            Err(unfit) => self.reason = closer(self.reason.take(), unfit),
        }
    }

    fn step_s(&self) -> f64 {
        self.fastest.as_ref().map_or(f64::INFINITY, |(_, prediction)| prediction.step_s)
    }

    /// None: nothing was looked at.
    fn found(self) -> Option<Result<Candidate, Unfit>> {
        self.fastest.map(Ok).or(self.reason.map(Err))
    }
}

#[cfg(test)]
pub(super) mod tests;
