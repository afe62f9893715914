//! Each worker's share of a step: in proportion to its speed, so that no worker waits for a slow one. The mean follows, as contributions are weighted by samples.

use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::timeline::Assignment;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::machine::Run;
use crate::run::planning::Planning;
use crate::run::state::Phase;

/// Time between looks: the window of a speed (`progress::Meter`).
const LOOK: Duration = Duration::from_secs(10);
/// Other shares are worth a generation where the slowest worker's step is longer by this factor with the present ones,
const GAIN_MIN: f64 = 1.15;
/// in this many looks in a row: a briefly busy machine is not slow.
const LOOKS: u32 = 3;
/// Speeds are whole numbers up to this one, the fastest worker's.
const WEIGHT_MAX: u32 = 64;
/// From this speed on, all workers count as equally fast: speeds are measured to some percent.
const WEIGHT_EVEN: u32 = 56;
/// The smallest weight: rounds wait for a slower worker, or miss it at their deadlines.
const WEIGHT_MIN: u32 = 4;
/// Seconds of computing in the window behind a usable speed. A fast worker beside a slow one mostly waits, so little must be enough.
const COMPUTED_MIN_S: f64 = 0.2;

/// Progress towards new shares.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Shares {
    next_look: Duration,
    /// Looks in a row in favour of new shares.
    uneven: u32,
}

impl Shares {
    /// Whether a generation should begin with other shares.
    pub fn are_due(&self) -> bool {
        self.uneven >= LOOKS
    }
}

impl Planning {
    /// Assigns the steps from a round on to these workers, by speed.
    pub(crate) fn share_out(&mut self, core: &mut Core, first_round: Round, workers: Vec<WorkerId>) {
        let weights =
            if core.config.shares_follow_speed() { weights_of(&core.speeds(&workers)) } else { Vec::new() };
        let before = core.state.rounds.ledger.newest().map_or(&[][..], |newest| newest.weights.each());
        if before != weights {
            core.notice(Severity::Info, None, describe(&workers, &weights, core.config.train.batch));
        }
        core.state.rounds.ledger.assign(first_round, workers, weights);
        self.shares = Shares { next_look: core.now + LOOK, uneven: 0 };
    }
}

impl Run {
    /// Compares the present shares with the present speeds at intervals.
    pub(crate) fn look_at_shares(&mut self) {
        if self.shares_are_watched() && self.core.now >= self.planning.shares.next_look {
            self.planning.shares.next_look = self.core.now + LOOK;
            self.planning.shares.uneven =
                if self.core.other_shares_pay() { self.planning.shares.uneven + 1 } else { 0 };
        }
    }

    /// Time of the next comparison, without an earlier event.
    pub(crate) fn shares_are_looked_at(&self) -> Option<Duration> {
        self.shares_are_watched().then_some(self.planning.shares.next_look)
    }

    fn shares_are_watched(&self) -> bool {
        let are_several =
            || self.core.state.generations.present.as_ref().is_some_and(|lineup| lineup.replicas.len() > 1);
        let is_free = self.core.state.phase == Phase::Training && !self.generations.is_settling();
        is_free
            && self.core.config.shares_follow_speed()
            && !self.core.is_closing()
            && !self.accounting.is_held(&self.core)
            && are_several()
    }
}

impl Core {
    fn other_shares_pay(&self) -> bool {
        let Some(Assignment { workers, weights, .. }) = self.state.rounds.ledger.newest() else {
            return false;
        };
        let speeds = self.speeds(workers);
        let now = step_s(weights.each(), &speeds);
        let then = step_s(&weights_of(&speeds), &speeds);
        now.zip(then).is_some_and(|(now, then)| now > GAIN_MIN * then)
    }

    /// Tokens per second of computing, of each of these; `None` for one that has not computed for long enough.
    fn speeds(&self, workers: &[WorkerId]) -> Vec<Option<f64>> {
        let speed = |worker: &WorkerId| {
            let (_, done) = self.peers.get(worker)?.progress.meter.recent()?;
            let is_known = done.compute_s >= COMPUTED_MIN_S && done.tokens > 0;
            is_known.then(|| done.tokens as f64 / done.compute_s)
        };
        workers.iter().map(speed).collect()
    }
}

/// Weights of the shares; empty: all equal. A worker of unknown speed counts as the median.
fn weights_of(speeds: &[Option<f64>]) -> Vec<u32> {
    let mut known: Vec<f64> = speeds.iter().copied().flatten().collect();
    known.sort_by(f64::total_cmp);
    let (Some(&typical), Some(&fastest)) = (known.get(known.len() / 2), known.last()) else {
        return Vec::new();
    };
    let weight = |speed: &Option<f64>| {
        let of_fastest = f64::from(WEIGHT_MAX) * speed.unwrap_or(typical) / fastest;
        (of_fastest.round() as u32).clamp(WEIGHT_MIN, WEIGHT_MAX)
    };
    let weights: Vec<u32> = speeds.iter().map(weight).collect();
    let are_alike = weights.iter().all(|&weight| weight >= WEIGHT_EVEN);
    if are_alike { Vec::new() } else { weights }
}

/// Time of the slowest worker for its part of the work that all together do in a unit of time; `None`: no speed is
/// known.
fn step_s(weights: &[u32], speeds: &[Option<f64>]) -> Option<f64> {
    let weight = |at: usize| weights.get(at).copied().map_or(1.0, f64::from);
    let all: f64 = (0..speeds.len()).map(weight).sum();
    let took = speeds.iter().enumerate().filter_map(|(at, speed)| Some(weight(at) / all / (*speed)?));
    took.reduce(f64::max)
}

/// Describes the shares.
fn describe(workers: &[WorkerId], weights: &[u32], batch: u32) -> String {
    /// Most workers listed.
    const TOLD_MAX: usize = 8;
    if weights.is_empty() {
        return "all workers are about as fast: each computes as much of a step as the others".to_owned();
    }
    let assignment = Assignment {
        weights: weights.to_vec().into(),
        ..Assignment::evenly(Default::default(), workers.to_vec())
    };
    let part = |(at, worker): (usize, &WorkerId)| {
        let share = assignment.share(batch.into(), at);
        format!("{worker} {}", share.end - share.start)
    };
    let parts: Vec<String> = workers.iter().enumerate().take(TOLD_MAX).map(part).collect();
    let rest = if workers.len() > TOLD_MAX { ", …" } else { "" };
    format!("shares of a step follow the workers' speeds: of {batch} sequences {}{rest}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_in_proportion_to_speeds_unless_all_are_about_as_fast() {
        assert_eq!(weights_of(&[Some(100.0), Some(50.0), Some(25.0)]), [64, 32, 16]);
        assert!(weights_of(&[Some(100.0), Some(90.0)]).is_empty());
        assert_eq!(weights_of(&[Some(100.0), Some(0.001)]), [64, 4], "nobody is left with nothing");
    }

    #[test]
    fn who_is_not_known_is_as_fast_as_others_are_in_the_middle() {
        assert_eq!(weights_of(&[None, Some(100.0), Some(50.0), Some(25.0)]), [32, 64, 32, 16]);
        for nothing_to_compare in [&[][..], &[None, None], &[None, Some(3.0)]] {
            assert!(weights_of(nothing_to_compare).is_empty());
        }
    }

    /// Fast as 4 and 1: with even parts the slow one takes four times as long as with a fifth.
    #[test]
    fn a_step_takes_as_long_as_its_slowest_part() {
        let speeds = [Some(4.0), Some(1.0)];
        assert_eq!(step_s(&[], &speeds), Some(0.5));
        assert_eq!(step_s(&weights_of(&speeds), &speeds), Some(0.2));
        assert_eq!(step_s(&[1, 3], &[None, Some(1.0)]), Some(0.75));
        assert_eq!(step_s(&[], &[None]), None);
    }

    #[test]
    fn people_are_told_who_computes_how_much() {
        let workers = [1, 2].map(WorkerId);
        assert!(describe(&workers, &[64, 16], 20).ends_with("of 20 sequences w1 16, w2 4"));
        assert!(describe(&workers, &[], 20).starts_with("all workers are about as fast"));
    }
}
