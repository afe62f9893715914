//! Whether another plan is worth the move to it, while a run goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_common::units::Bytes;
use serde::{Deserialize, Serialize};

use super::words::outline_of;
use super::{
    Choice, DeviceId, Divisions, Plan, Topology, Workload, choose_with_groups, outline, predict, why,
};

/// A step shorter by less than a tenth is within the error of predictions.
const GAIN_MIN: f64 = 0.1;
/// A move costs at once and gains gradually: the gain must be twice the cost.
const MARGIN: f64 = 2.0;
/// Bytes of state per parameter in a move: it, two moments, and the outer momentum, in f32.
const MOVED_BYTES: f64 = 16.0;

/// A question to the planner: numbers alone, so that it can be answered beside the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The machines present, and their links.
    pub topology: Topology,
    /// Permitted divisions of the run.
    pub divisions: Divisions,
    /// The run's plan on these machines; `None`: it has no whole copy there.
    pub present: Option<Present>,
    /// Steps until the run ends.
    pub steps_left: u64,
    /// Seconds without training in a move, besides the transfer of the state.
    pub pause_s: f64,
}

/// The present plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Present {
    /// Members of the tensor groups in place of devices; 1: single workers.
    pub members: u32,
    /// The plan itself.
    pub plan: Plan,
}

/// The planner's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Keep the plan, with the reason.
    Stay(String),
    /// Move to another plan, with the reason.
    Move(Box<Choice>, String),
}

/// Cost and gain of a move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Steps until the run ends.
    pub steps_left: u64,
    /// Seconds of a step under the present plan.
    pub present_s: f64,
    /// Seconds of a step under the best plan.
    pub best_s: f64,
    /// Seconds of the move.
    pub price_s: f64,
}

impl Prospect {
    /// Whether to move.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.best_s <= self.present_s * (1.0 - GAIN_MIN) && self.gain_s() > MARGIN * self.price_s
    }

    /// Seconds saved over the remaining steps.
    #[must_use]
    pub fn gain_s(&self) -> f64 {
        self.steps_left as f64 * (self.present_s - self.best_s)
    }
}

impl Question {
    /// Returns the best plan for these machines and the remaining work, if the move to it pays.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let choice = match choose_with_groups(self.topology.clone(), &self.divisions, true) {
            Ok((_, choice)) => choice,
            Err(error) => return Answer::Stay(format!("the plan stays: {error}")),
        };
        let present = self.present.as_ref().and_then(|present| Some((present, self.step_s(present)?)));
        let Some((present, present_s)) = present else {
            let text = format!("the present plan does not work on the available machines. {}", why(&choice));
            return Answer::Move(Box::new(choice), text);
        };
        let best_s = choice.best.1.step_s;
        let bytes = self.moved_bytes(present, &choice);
        let price_s = self.pause_s + way_s(&self.topology, &present.plan, &bytes);
        let prospect = Prospect { steps_left: self.steps_left, present_s, best_s, price_s };
        let figures = format!(
            "{} takes {best_s:.3} s a step, {} takes {present_s:.3} s: the remaining {} steps would take {:.0} s less; moving {} takes {price_s:.1} s",
            outline(&choice),
            outline_of(&present.plan, present.members),
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

    /// Seconds of a step under the present plan; `None`: it does not fit.
    fn step_s(&self, present: &Present) -> Option<f64> {
        let work = &self.divisions.with(present.members)?.work;
        let predicted = match present.members {
            1 => predict(&self.topology, work, &present.plan),
            members => predict(&self.topology.in_groups(members).ok()?, work, &present.plan),
        };
        predicted.ok().map(|prediction| prediction.step_s)
    }

    /// By site: bytes of state that its workers need and lack. Where the number of workers sharing layers changes, no share can be reused, and each worker takes its own
    /// out of all shares of its blocks.
    fn moved_bytes(&self, present: &Present, choice: &Choice) -> BTreeMap<usize, f64> {
        let to = &choice.best.0;
        let Some(division) = self.divisions.with(choice.tensor) else { return BTreeMap::new() };
        let is_cut_alike = present.members == choice.tensor;
        let lacking = lacking_bytes(&division.work, is_cut_alike.then_some(&present.plan), to);
        let fetched_by = if is_cut_alike { 1.0 } else { f64::from(choice.tensor) };
        let mut by_site = BTreeMap::new();
        for (device, bytes) in lacking {
            *by_site.entry(device.site).or_insert(0.0) += bytes * fetched_by;
        }
        by_site
    }
}

/// By device or group: bytes of the state of `to` that it does not have from the plan before.
fn lacking_bytes(work: &Workload, from: Option<&Plan>, to: &Plan) -> BTreeMap<DeviceId, f64> {
    let had = from.map(blocks_of).unwrap_or_default();
    let missing = |(device, blocks): (DeviceId, BTreeSet<u32>)| {
        let here = had.get(&device);
        let lacking = blocks.iter().filter(|block| here.is_none_or(|here| !here.contains(block)));
        (device, lacking.map(|&block| work.parameters_of(block)).sum::<f64>() * MOVED_BYTES)
    };
    blocks_of(to).into_iter().map(missing).collect()
}

/// By device: its blocks in a plan.
fn blocks_of(plan: &Plan) -> BTreeMap<DeviceId, BTreeSet<u32>> {
    let ranks = plan.pipeline.ranks.max(1) as usize;
    let of_rank = |rank: usize| plan.stages.iter().skip(rank).step_by(ranks).flat_map(Range::clone).collect();
    let of_replica = |replica: &Vec<DeviceId>| {
        replica.iter().enumerate().map(|(rank, device)| (*device, of_rank(rank))).collect::<Vec<_>>()
    };
    plan.replicas.iter().flat_map(of_replica).collect()
}

/// Seconds of that transfer: each site takes the missing state over the fastest link from a site with a part in the plan before.
fn way_s(topology: &Topology, from: &Plan, bytes: &BTreeMap<usize, f64>) -> f64 {
    let sources: BTreeSet<usize> = from.replicas.iter().flatten().map(|device| device.site).collect();
    let took = |(&site, bytes): (&usize, &f64)| {
        let rates = sources.iter().map(|&source| topology.link(source, site).bytes_per_s);
        bytes / rates.fold(1.0, f64::max)
    };
    bytes.iter().map(took).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
