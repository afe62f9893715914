//! What exchanges take in each phase of a run.

use std::ops::Range;
use std::time::Duration;

use longhaul_plan::{PhaseKind, WholeRun};

/// Longer than any simulation, in seconds.
const EXCHANGE_MAX_S: f64 = 1e9;

/// By phase, in order: the step at which it ends, and what the exchange of a round takes for each of its steps, in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges {
    phases: Vec<(u64, f64)>,
    warmup_steps: u64,
}

impl Exchanges {
    pub fn of(whole: &WholeRun) -> Self {
        let end = |end: &mut u64, phase: &longhaul_plan::PhaseTime| {
            *end += phase.steps;
            Some((*end, phase.sync_s))
        };
        let is_warmup = |phase: &&longhaul_plan::PhaseTime| phase.kind == PhaseKind::Warmup;
        Self {
            phases: whole.phases.iter().scan(0, end).collect(),
            warmup_steps: whole.phases.iter().find(is_warmup).map_or(0, |phase| phase.steps),
        }
    }

    /// Of the round with these steps.
    pub fn takes(&self, steps: Range<u64>) -> Duration {
        let phase = self.phases.iter().find(|(end, _)| steps.start < *end).or(self.phases.last());
        let step_s = phase.map_or(0.0, |(_, sync_s)| *sync_s);
        let count = steps.end.saturating_sub(steps.start) as f64;
        Duration::from_secs_f64((step_s * count).min(EXCHANGE_MAX_S))
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
        let phase = |kind, steps, sync_s| PhaseTime { kind, steps, step_s: 1.0, sync_s };
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
    }
}
