//! When rounds happen, and for which fragments: a pure map between steps and rounds.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::id::{FragmentId, Round};
use crate::plan::FragmentLayout;

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
    /// Fragments take turns after the opening: each is due in every so-manieth round. At most as many as there are fragments.
    pub groups: u32,
    /// Rounds in which the steps of one round are exchanged after the opening: the second and later ones have no steps of their own.
    pub exchanges: u32,
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
            self.opening_rounds + (self.steps - opening).div_ceil(self.every) * u64::from(self.exchanges)
        }
    }

    /// The steps of a round; empty from [`Self::rounds`] on, and for later exchanges of the same steps.
    #[must_use]
    pub fn steps_of(&self, round: Round) -> Range<u64> {
        let start = |r: u64| {
            let turns = r.saturating_sub(self.opening_rounds).div_ceil(u64::from(self.exchanges));
            (r.min(self.opening_rounds) * self.opening_every + turns * self.every).min(self.steps)
        };
        start(round.0)..start(round.0 + 1)
    }

    /// Which exchange of its steps a round is, from 0.
    #[must_use]
    pub fn exchange_of(&self, round: Round) -> u32 {
        (round.0.saturating_sub(self.opening_rounds) % u64::from(self.exchanges)) as u32
    }

    /// The step that a round exchanges first, or goes on exchanging.
    #[must_use]
    pub fn step_of(&self, round: Round) -> u64 {
        self.steps_of(Round(round.0 - u64::from(self.exchange_of(round)))).start
    }

    /// The round that a step belongs to: the first one that exchanges it.
    #[must_use]
    pub fn round_of(&self, step: u64) -> Round {
        let opening = self.opening_steps();
        Round(if step < opening {
            step / self.opening_every
        } else {
            self.opening_rounds + (step - opening) / self.every * u64::from(self.exchanges)
        })
    }

    /// Whether a round belongs to the opening.
    #[must_use]
    pub fn is_opening(&self, round: Round) -> bool {
        round.0 < self.opening_rounds
    }

    /// Whether a round synchronises a fragment. Neighbours are due in different rounds, so that each round has parts from everywhere in
    /// the model (the strided pattern of Streaming DiLoCo, arXiv 2501.18512). The run's last round has all of them: what was trained
    /// until then is in the final model.
    #[must_use]
    pub fn is_due(&self, round: Round, fragment: FragmentId) -> bool {
        if self.groups <= 1 || self.is_opening(round) {
            return true;
        }
        let turn = (round.0 - self.opening_rounds) % u64::from(self.groups);
        u64::from(fragment.0 % self.groups) == turn || round.next().0 >= self.rounds()
    }

    /// The first round from `round` on in which a fragment is due; past the end of the run, any round.
    #[must_use]
    pub fn next_due(&self, round: Round, fragment: FragmentId) -> Round {
        let within_a_turn = (round.0..round.0.saturating_add(u64::from(self.groups.max(1)))).map(Round);
        within_a_turn.into_iter().find(|&round| self.is_due(round, fragment)).unwrap_or(round)
    }

    /// The values of the fragments that a round synchronises, as few stretches.
    #[must_use]
    pub fn due_stretches(&self, layout: &FragmentLayout, round: Round) -> Vec<Range<usize>> {
        let mut stretches: Vec<Range<usize>> = Vec::new();
        for fragment in layout.fragments().filter(|&fragment| self.is_due(round, fragment)) {
            let range = layout.range(fragment);
            match stretches.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => stretches.push(range),
            }
        }
        stretches
    }

    /// The same rounds for a model of `fragments`: so that no round is empty, there are not more groups than that.
    #[must_use]
    pub fn for_fragments(self, fragments: u32) -> Self {
        Self { groups: self.groups.min(fragments.max(1)), ..self }
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
        let schedule = RoundSchedule {
            opening_rounds: 2,
            opening_every: 3,
            every: 10,
            groups: 1,
            exchanges: 1,
            steps: 30,
        };
        let spans: Vec<_> = (0..schedule.rounds()).map(|r| schedule.steps_of(Round(r))).collect();
        assert_eq!(spans, [0..3, 3..6, 6..16, 16..26, 26..30]);
    }

    #[test]
    fn fragments_take_turns_between_the_opening_and_the_last_round() {
        let schedule = RoundSchedule {
            opening_rounds: 1,
            opening_every: 1,
            every: 1,
            groups: 3,
            exchanges: 1,
            steps: 6,
        };
        let due =
            |round| (0..4).filter(|&f| schedule.is_due(Round(round), FragmentId(f))).collect::<Vec<_>>();
        assert_eq!(
            (0..6).map(due).collect::<Vec<_>>(),
            [vec![0, 1, 2, 3], vec![0, 3], vec![1], vec![2], vec![0, 3], vec![0, 1, 2, 3],]
        );
        let layout = FragmentLayout { values: 35, fragment_values: 10 };
        let ends = |range: Range<usize>| [range.start, range.end];
        let stretches = |round| schedule.due_stretches(&layout, Round(round)).into_iter().map(ends).collect();
        let stretches: [Vec<_>; 3] = [0, 1, 2].map(stretches);
        assert_eq!(stretches, [vec![[0, 35]], vec![[0, 10], [30, 35]], vec![[10, 20]]]);
        assert_eq!(schedule.next_due(Round(2), FragmentId(0)), Round(4));
        assert_eq!(schedule.next_due(Round(4), FragmentId(0)), Round(4));
        assert_eq!(schedule.for_fragments(2).groups, 2);
    }

    proptest! {
        #[test]
        fn rounds_tile_the_steps_of_any_run(
            opening_rounds in 0u64..9, opening_every in 1u64..9, every in 1u64..30, exchanges in 1u32..4, steps in 1u64..400,
        ) {
            let schedule = RoundSchedule { opening_rounds, opening_every, every, groups: 1, exchanges, steps };
            let (mut next, mut exchanged) = (0, 0);
            for round in (0..schedule.rounds()).map(Round) {
                let span = schedule.steps_of(round);
                prop_assert_eq!(span.start, next);
                prop_assert_eq!(span.is_empty(), schedule.exchange_of(round) > 0);
                if !span.is_empty() {
                    exchanged = span.start;
                }
                prop_assert_eq!(schedule.step_of(round), exchanged);
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
