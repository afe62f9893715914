//! Seconds per step over whole rounds, from status samples of a run.

/// Progress of a run at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    pub at_s: f64,
    pub steps: u64,
    /// Bytes sent between sites.
    pub bytes: u64,
    /// A worker's CPU seconds beside those of the thread that computes.
    pub beside_s: f64,
}

/// Measurement of a case.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Steps per round.
    pub round: u64,
    /// Rounds before the clock starts, if the case completes twice as many.
    pub warm_up: u64,
    /// Long enough to make half a second irrelevant.
    pub enough_s: f64,
}

/// Result over the measured rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub step_s: f64,
    pub rounds: u64,
    pub bytes_per_step: f64,
    pub beside_s_per_step: f64,
}

impl Pace {
    /// Whether two rounds after the warm-up are complete, and took enough time.
    pub fn is_enough(&self, looks: &[Look]) -> bool {
        let Some(from) = first_at(looks, self.warm_up * self.round) else { return false };
        let two = (self.warm_up + 2) * self.round;
        looks.last().is_some_and(|last| last.steps >= two && last.at_s - from.at_s >= self.enough_s)
    }

    /// Measures the rounds after the warm-up, or the later half of a case cut short. `None`: fewer than two
    /// rounds are complete.
    pub fn measured(&self, looks: &[Look]) -> Option<Measured> {
        let done = looks.last()?.steps / self.round;
        if done < 2 {
            return None;
        }
        let warm_up = self.warm_up.min(done / 2);
        let from = first_at(looks, warm_up * self.round)?;
        let to = first_at(looks, done * self.round)?;
        // `None` if the run did all of it between two samples.
        let steps = to.steps.checked_sub(from.steps).filter(|steps| *steps > 0)? as f64;
        Some(Measured {
            step_s: (to.at_s - from.at_s) / steps,
            rounds: done - warm_up,
            bytes_per_step: to.bytes.saturating_sub(from.bytes) as f64 / steps,
            beside_s_per_step: (to.beside_s - from.beside_s) / steps,
        })
    }
}

fn first_at(looks: &[Look], steps: u64) -> Option<Look> {
    looks.iter().copied().find(|look| look.steps >= steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second per step, and ten more at the end of each round of five; 40 bytes per round.
    fn looks(steps: u64) -> Vec<Look> {
        let look = |step| {
            let (at_s, bytes) = ((step + step / 5 * 10) as f64, step / 5 * 40);
            Look { at_s, steps: step, bytes, beside_s: 0.25 * step as f64 }
        };
        (1..=steps).map(look).collect()
    }

    const PACE: Pace = Pace { round: 5, warm_up: 2, enough_s: 30.0 };

    #[test]
    fn whole_rounds_after_the_warm_up_count() {
        assert!(!PACE.is_enough(&looks(19)));
        assert!(PACE.is_enough(&looks(20)));
        let expected = Measured { step_s: 3.0, rounds: 2, bytes_per_step: 8.0, beside_s_per_step: 0.25 };
        assert_eq!(PACE.measured(&looks(23)), Some(expected));
    }

    #[test]
    fn a_case_that_was_cut_short_is_measured_over_the_later_half_of_its_rounds() {
        assert_eq!(PACE.measured(&looks(14)).map(|measured| measured.rounds), Some(1));
        assert_eq!(PACE.measured(&looks(9)), None);
    }
}
