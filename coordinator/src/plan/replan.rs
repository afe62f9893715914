//! Whether another plan is worth the move to it, while a run goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_common::units::Bytes;
use serde::{Deserialize, Serialize};

use super::{Choice, DeviceId, Plan, Topology, Workload, choose_among, predict, shape, why};

/// A step that is less than a tenth shorter is within what predictions err by.
const GAIN_MIN: f64 = 0.1;
/// What a move costs is lost at once, and what it gains comes by and by: it must gain twice what it costs.
const MARGIN: f64 = 2.0;
/// What moves of a parameter, in bytes: it, two moments, and the outer momentum, in f32.
const MOVED_BYTES: f64 = 16.0;

/// What is asked: numbers alone, so that the answer can be worked out beside the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The machines that are here, and the ways between them.
    pub topology: Topology,
    /// What a step asks for.
    pub work: Workload,
    /// The plan that the run has, on these machines; none: it has no whole copy there.
    pub present: Option<Plan>,
    /// Numbers of ranks that the configuration permits.
    pub permitted: BTreeSet<usize>,
    /// Steps until the run ends.
    pub steps_left: u64,
    /// For how long nobody trains in a move, in seconds, besides what the state takes on its way.
    pub pause_s: f64,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The plan stays, for the reason that is said.
    Stay(String),
    /// Another plan is to be moved to, for the reason that is said.
    Move(Box<Choice>, String),
}

/// What a move would cost and gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Steps until the run ends.
    pub steps_left: u64,
    /// A step under the plan that the run has, in seconds.
    pub present_s: f64,
    /// A step under the best plan.
    pub best_s: f64,
    /// What the move takes, in seconds.
    pub price_s: f64,
}

impl Prospect {
    /// Whether to move.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.best_s <= self.present_s * (1.0 - GAIN_MIN) && self.gain_s() > MARGIN * self.price_s
    }

    /// What the steps that are left take less, in seconds.
    #[must_use]
    pub fn gain_s(&self) -> f64 {
        self.steps_left as f64 * (self.present_s - self.best_s)
    }
}

impl Question {
    /// The best plan for these machines and the work that is left, if the move to it pays.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let devices = self.topology.devices().count();
        let admits = |rows: &[Vec<DeviceId>]| {
            let ranks = rows.first().map_or(0, Vec::len);
            self.permitted.contains(&ranks) && rows.len() == devices / ranks
        };
        let choice = match choose_among(&self.topology, &self.work, admits) {
            Ok(choice) => choice,
            Err(error) => return Answer::Stay(format!("the plan stays: {error}")),
        };
        let present = self.present.as_ref().and_then(|plan| {
            predict(&self.topology, &self.work, plan).ok().map(|prediction| (plan, prediction.step_s))
        });
        let Some((plan, present_s)) = present else {
            let text =
                format!("the plan that the run has is none on the machines that are here. {}", why(&choice));
            return Answer::Move(Box::new(choice), text);
        };
        let (best, best_s) = (&choice.best.0, choice.best.1.step_s);
        let bytes = moved_bytes(&self.work, plan, best);
        let price_s = self.pause_s + way_s(&self.topology, plan, &bytes);
        let prospect = Prospect { steps_left: self.steps_left, present_s, best_s, price_s };
        let figures = format!(
            "{} takes {best_s:.3} s a step where {} takes {present_s:.3} s: over {} steps {:.0} s less, for a move of {} that takes {price_s:.1} s",
            shape(best),
            shape(plan),
            self.steps_left,
            prospect.gain_s().max(0.0),
            Bytes(bytes.values().sum::<f64>() as u64)
        );
        if prospect.pays() {
            Answer::Move(Box::new(choice), figures)
        } else {
            Answer::Stay(format!("the plan stays: {figures}"))
        }
    }
}

/// By device: what it needs of the state and does not have, in bytes.
fn moved_bytes(work: &Workload, from: &Plan, to: &Plan) -> BTreeMap<DeviceId, f64> {
    let had = blocks_of(from);
    let values = |block: &u32| work.blocks.get(*block as usize).map_or(0, |block| block.parameters) as f64;
    let missing = |(device, blocks): (DeviceId, BTreeSet<u32>)| {
        let here = had.get(&device);
        let lacking = blocks.iter().filter(|block| here.is_none_or(|here| !here.contains(block)));
        (device, lacking.map(values).sum::<f64>() * MOVED_BYTES)
    };
    blocks_of(to).into_iter().map(missing).collect()
}

/// By device: the blocks that it has in a plan.
fn blocks_of(plan: &Plan) -> BTreeMap<DeviceId, BTreeSet<u32>> {
    let ranks = plan.pipeline.ranks.max(1) as usize;
    let of_rank = |rank: usize| plan.stages.iter().skip(rank).step_by(ranks).flat_map(Range::clone).collect();
    let of_replica = |replica: &Vec<DeviceId>| {
        replica.iter().enumerate().map(|(rank, device)| (*device, of_rank(rank))).collect::<Vec<_>>()
    };
    plan.replicas.iter().flat_map(of_replica).collect()
}

/// How long all that is on its way, in seconds: each site takes what it lacks over the fastest way from a site that has a part in the plan before.
fn way_s(topology: &Topology, from: &Plan, bytes: &BTreeMap<DeviceId, f64>) -> f64 {
    let sources: BTreeSet<usize> = from.replicas.iter().flatten().map(|device| device.site).collect();
    let mut into: BTreeMap<usize, f64> = BTreeMap::new();
    for (device, bytes) in bytes {
        *into.entry(device.site).or_default() += bytes;
    }
    let took = |(&site, bytes): (&usize, &f64)| {
        let rates = sources.iter().map(|&source| topology.link(source, site).bytes_per_s);
        bytes / rates.fold(1.0, f64::max)
    };
    into.iter().map(took).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
