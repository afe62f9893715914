//! Duration of exchanges in each phase of a run.

use std::ops::Range;
use std::time::Duration;

use longhaul_plan::{PhaseKind, WholeRun};

/// Longer than any simulation, in seconds.
const EXCHANGE_MAX_S: f64 = 1e9;

#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges {
    /// In order.
    phases: Vec<OfPhase>,
    warmup_steps: u64,
}

/// For each step, in seconds.
#[derive(Clone, Copy, Debug)]
struct OfPhase {
    /// The step at which it ends.
    end: u64,
    /// Seconds of a round's exchange.
    sync_s: f64,
    /// and by how much computing takes longer beside it.
    coding_s: f64,
}

impl Exchanges {
    pub fn of(whole: &WholeRun) -> Self {
        let end = |end: &mut u64, phase: &longhaul_plan::PhaseTime| {
            *end += phase.steps;
            Some(OfPhase { end: *end, sync_s: phase.sync_s, coding_s: phase.coding_s })
        };
        let is_warmup = |phase: &&longhaul_plan::PhaseTime| phase.kind == PhaseKind::Warmup;
        Self {
            phases: whole.phases.iter().scan(0, end).collect(),
            warmup_steps: whole.phases.iter().find(is_warmup).map_or(0, |phase| phase.steps),
        }
    }

    /// Of the round with these steps.
    pub fn takes(&self, steps: Range<u64>) -> Duration {
        let step_s = self.at(steps.start).map_or(0.0, |phase| phase.sync_s);
        let count = steps.end.saturating_sub(steps.start) as f64;
        Duration::from_secs_f64((step_s * count).min(EXCHANGE_MAX_S))
    }

    /// By how much each step computes longer from this one on, in seconds.
    pub fn coding_s(&self, step: u64) -> f64 {
        self.at(step).map_or(0.0, |phase| phase.coding_s)
    }

    fn at(&self, step: u64) -> Option<OfPhase> {
        self.phases.iter().find(|phase| step < phase.end).or(self.phases.last()).copied()
    }

    /// Steps of the warm-up.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_plan::PhaseTime;

    #[test]
    fn a_round_takes_what_its_phase_does() {
        let phase =
            |kind, steps, sync_s| PhaseTime { kind, steps, step_s: 1.0, sync_s, coding_s: sync_s / 10.0 };
        let whole = WholeRun {
            seconds: 100.0,
            local_s: 100.0,
            share_of_local_speed: 1.0,
            phases: vec![
                phase(PhaseKind::Warmup, 10, 3.0),
                phase(PhaseKind::Early, 20, 2.0),
                phase(PhaseKind::Steady, 70, 0.5),
            ],
        };
        let exchanges = Exchanges::of(&whole);
        let takes = |steps| exchanges.takes(steps).as_secs_f64();
        assert_eq!([takes(9..10), takes(10..11), takes(29..30), takes(30..35)], [3.0, 2.0, 2.0, 2.5]);
        assert_eq!((takes(100..100), exchanges.warmup_steps()), (0.0, 10));
        assert_eq!([9, 10, 100].map(|step| exchanges.coding_s(step)), [0.3, 0.2, 0.05]);
    }
}
