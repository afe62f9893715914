//! When rounds happen: a pure map between steps and rounds.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::id::Round;

/// The steps between rounds over the whole run: an *opening* with rounds close together (a young model moves fast
/// and its updates do not compress well), then a steady pace.
///
/// A step is counted over the run, from zero; round `r` is contributed after its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundSchedule {
    /// Rounds of the opening.
    pub opening_rounds: u64,
    /// Local steps in a round of the opening.
    pub opening_every: u64,
    /// Local steps in a round after it.
    pub every: u64,
    /// Steps of the run: the last round is shortened to end with them.
    pub steps: u64,
}

impl RoundSchedule {
    /// The rounds of the run.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        let opening = self.opening_steps();
        if self.steps <= opening {
            self.steps.div_ceil(self.opening_every)
        } else {
            self.opening_rounds + (self.steps - opening).div_ceil(self.every)
        }
    }

    /// The steps of a round; empty from [`Self::rounds`] on.
    #[must_use]
    pub fn steps_of(&self, round: Round) -> Range<u64> {
        let start = |r: u64| {
            let late = r.saturating_sub(self.opening_rounds);
            (r.min(self.opening_rounds) * self.opening_every + late * self.every).min(self.steps)
        };
        start(round.0)..start(round.0 + 1)
    }

    /// The round that a step belongs to.
    #[must_use]
    pub fn round_of(&self, step: u64) -> Round {
        let opening = self.opening_steps();
        Round(if step < opening {
            step / self.opening_every
        } else {
            self.opening_rounds + (step - opening) / self.every
        })
    }

    /// Whether a round belongs to the opening.
    #[must_use]
    pub fn is_opening(&self, round: Round) -> bool {
        round.0 < self.opening_rounds
    }

    fn opening_steps(&self) -> u64 {
        self.opening_rounds * self.opening_every
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_opening_is_followed_by_the_steady_pace() {
        let schedule = RoundSchedule { opening_rounds: 2, opening_every: 3, every: 10, steps: 30 };
        let spans: Vec<_> = (0..schedule.rounds()).map(|r| schedule.steps_of(Round(r))).collect();
        assert_eq!(spans, [0..3, 3..6, 6..16, 16..26, 26..30]);
    }

    proptest! {
        #[test]
        fn rounds_tile_the_steps_of_any_run(
            opening_rounds in 0u64..9, opening_every in 1u64..9, every in 1u64..30, steps in 1u64..400,
        ) {
            let schedule = RoundSchedule { opening_rounds, opening_every, every, steps };
            let mut next = 0;
            for round in (0..schedule.rounds()).map(Round) {
                let span = schedule.steps_of(round);
                prop_assert_eq!(span.start, next);
                prop_assert!(!span.is_empty());
                for step in span.clone() {
                    prop_assert_eq!(schedule.round_of(step), round);
                }
                next = span.end;
            }
            prop_assert_eq!(next, steps);
            prop_assert!(schedule.steps_of(Round(schedule.rounds())).is_empty());
        }
    }
}
