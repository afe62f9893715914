//! Schedule of rounds and their fragments: a pure map between steps and rounds.

mod changes;

pub use changes::{CHANGES_KEPT_MAX, Change, Changes, Pace};

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::id::{FragmentId, Round};
use crate::plan::FragmentLayout;

/// The steps between rounds over the whole run: a *warm-up* with frequent rounds (a model in early training
/// changes fast, and its updates compress badly), then a steady pace, and later other paces where links have
/// changed.
///
/// Steps count over the run, from zero; round `r` is contributed after its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundSchedule {
    /// Rounds of the warm-up.
    pub warmup_rounds: u64,
    /// Local steps per round of the warm-up.
    pub warmup_every: u64,
    /// Local steps per later round, up to the first of `changes`.
    pub every: u64,
    /// Local steps between the contribution and the result of a round after the warm-up (τ), up to the first
    /// of `changes`.
    pub overlap: u64,
    /// Groups of fragments that take turns after the warm-up: each is due every `groups` rounds. At most the
    /// number of fragments.
    pub groups: u32,
    /// Rounds that exchange the steps of one round after the warm-up: the second and later ones have no steps
    /// of their own.
    pub exchanges: u32,
    /// Steps of the run: the last round is shortened to end with them.
    pub steps: u64,
    /// Changes of `every`, `overlap` and `groups` after the warm-up.
    pub changes: Changes,
}

/// Least fragments of each of more groups than [`TURNS_OF_FEW_FRAGMENTS`].
const FRAGMENTS_OF_A_TURN: u32 = 4;
/// Groups of any model with as many fragments.
const TURNS_OF_FEW_FRAGMENTS: u32 = 5;

/// Returns the most groups of so many fragments: no round is empty, and each of more than five groups has
/// four fragments, so that their owners share a round's work.
#[must_use]
pub fn turns_max(fragments: u32) -> u32 {
    (fragments / FRAGMENTS_OF_A_TURN).max(TURNS_OF_FEW_FRAGMENTS).min(fragments.max(1))
}

impl RoundSchedule {
    /// Returns the number of rounds of the run.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        let warmup = self.warmup_steps();
        if self.steps <= warmup {
            return self.steps.div_ceil(self.warmup_every);
        }
        let Change { round, step, pace } =
            self.changes.kept().last().copied().unwrap_or_else(|| self.first());
        let left = self.steps.saturating_sub(step).div_ceil(pace.every);
        round.0.saturating_add(left.saturating_mul(u64::from(self.exchanges)))
    }

    /// Returns the steps of a round; empty from [`Self::rounds`] on, for later exchanges of the same steps,
    /// and for [forgotten](Self::reaches) rounds.
    #[must_use]
    pub fn steps_of(&self, round: Round) -> Range<u64> {
        self.start_of(round)..self.start_of(Round(round.0.saturating_add(1)))
    }

    fn start_of(&self, round: Round) -> u64 {
        if self.is_warmup(round) {
            return round.0.saturating_mul(self.warmup_every).min(self.steps);
        }
        let Change { round: from, step, pace } = self.change_at(round);
        let turns = round.0.saturating_sub(from.0).div_ceil(u64::from(self.exchanges));
        // A round that was the run's last, before the run was extended, ends where the next change begins.
        let end = self.changes.kept().iter().find(|change| change.round > round);
        let end = end.map_or(self.steps, |change| change.step.min(self.steps));
        step.saturating_add(turns.saturating_mul(pace.every)).min(end)
    }

    /// Whether the steps of a round are known: only the latest changes of pace are kept.
    #[must_use]
    pub fn reaches(&self, round: Round) -> bool {
        self.changes.cut_at().is_none_or(|oldest| round >= oldest.round)
    }

    /// Returns the index of a round's exchange of its steps, from 0.
    #[must_use]
    pub fn exchange_of(&self, round: Round) -> u32 {
        (round.0.saturating_sub(self.change_at(round).round.0) % u64::from(self.exchanges)) as u32
    }

    /// Returns the first step that a round exchanges, or continues to exchange.
    #[must_use]
    pub fn step_of(&self, round: Round) -> u64 {
        self.start_of(Round(round.0 - u64::from(self.exchange_of(round))))
    }

    /// Returns the round of a step: the first one that exchanges it.
    #[must_use]
    pub fn round_of(&self, step: u64) -> Round {
        if step < self.warmup_steps() {
            return Round(step / self.warmup_every);
        }
        let change = self.changes.kept().iter().rfind(|change| change.step <= step);
        let change = change.or(self.changes.cut_at()).copied();
        let Change { round, step: from, pace } = change.unwrap_or_else(|| self.first());
        Round(round.0 + step.saturating_sub(from) / pace.every * u64::from(self.exchanges))
    }

    /// Whether a round belongs to the warm-up.
    #[must_use]
    pub fn is_warmup(&self, round: Round) -> bool {
        round.0 < self.warmup_rounds
    }

    /// Returns the pace of a round after the warm-up; for one in it, the pace that follows.
    #[must_use]
    pub fn pace_in(&self, round: Round) -> Pace {
        self.change_at(round).pace
    }

    /// Returns the pace of the run's last rounds.
    #[must_use]
    pub fn last_pace(&self) -> Pace {
        self.changes.kept().last().map_or(self.first().pace, |change| change.pace)
    }

    /// Returns the schedule with this pace from a round on, or from the warm-up's end if that is later. Drops
    /// later changes. Without steps left it is unchanged.
    #[must_use]
    pub fn changed_at(mut self, round: Round, pace: Pace) -> Self {
        let round = Round(round.0.max(self.warmup_rounds));
        let step = self.start_of(round);
        if step >= self.steps {
            return self;
        }
        self.changes.truncate(round);
        if self.changes.kept().is_empty() && round.0 == self.warmup_rounds {
            let Pace { overlap, groups, every } = pace;
            return Self { every, overlap, groups, ..self };
        }
        // In an extended run a round begins before the pace leads to it.
        if pace != self.last_pace() || self.start_of(round) != step {
            self.changes = self.changes.with(Change { round, step, pace });
        }
        self
    }

    /// Returns the schedule of a run extended to more steps, once all rounds before `round` are done. If the
    /// last of them was shortened to end with the run, the next one begins at its end. `None`: no additional
    /// steps, or the run ended within a round of its warm-up.
    #[must_use]
    pub fn extended(self, round: Round, steps: u64) -> Option<Self> {
        let step = self.start_of(round);
        let longer = Self { steps, ..self };
        if step >= steps {
            return None;
        }
        if longer.start_of(round) == step {
            return Some(longer);
        }
        let pace = self.last_pace();
        let changes = longer.changes.with(Change { round, step, pace });
        (round.0 > self.warmup_rounds).then_some(Self { changes, ..longer })
    }

    /// Whether results are due by the next contribution, and each change begins where the previous pace leads, or within a previous round that was the
    /// run's last, and before the end.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        if self.overlap > self.every {
            return false;
        }
        let mut before = Self { changes: Changes::NONE, ..*self };
        self.changes.kept().iter().all(|change| {
            let is_known = before
                .changes
                .kept()
                .last()
                .map_or(change.round.0 > self.warmup_rounds, |last| change.round > last.round);
            let steps = before.start_of(Round(change.round.0.saturating_sub(u64::from(self.exchanges))))
                ..before.start_of(change.round);
            // Within it, in an extended run.
            let follows = steps.start < change.step && change.step <= steps.end;
            let is_oldest_known = before.changes == Changes::NONE && self.changes.cut_at().is_some();
            before.changes = before.changes.with(*change);
            let Pace { overlap, groups, every } = change.pace;
            let has_steps = every > 0 && overlap <= every && groups > 0 && change.step < self.steps;
            has_steps && is_known && (follows || is_oldest_known)
        })
    }

    /// Whether a round synchronises a fragment. Neighbours are due in different rounds, so that each round
    /// has parts from all over the model (the strided pattern of Streaming DiLoCo, arXiv 2501.18512). The
    /// run's last round has all fragments, so that the final model contains all training.
    #[must_use]
    pub fn is_due(&self, round: Round, fragment: FragmentId) -> bool {
        let Change { round: from, pace, .. } = self.change_at(round);
        if pace.groups <= 1 || self.is_warmup(round) {
            return true;
        }
        let turn = round.0.saturating_sub(from.0) % u64::from(pace.groups);
        u64::from(fragment.0 % pace.groups) == turn || round.0.saturating_add(1) >= self.rounds()
    }

    /// Returns the first round from `round` on in which a fragment is due; past the end of the run, any
    /// round.
    #[must_use]
    pub fn next_due(&self, round: Round, fragment: FragmentId) -> Round {
        let last_change = self.changes.kept().last().map_or(round, |last| last.round.max(round));
        let turns = u64::from(self.last_pace().groups.max(1));
        // Turns restart where the pace changes.
        let mut rounds = (round.0..last_change.0.saturating_add(turns)).map(Round);
        rounds.find(|&round| self.is_due(round, fragment)).unwrap_or(round)
    }

    /// Returns the values of the fragments that a round synchronises, as few stretches.
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

    /// Returns the schedule for a model of `fragments`, with at most [`turns_max`] groups.
    #[must_use]
    pub fn for_fragments(self, fragments: u32) -> Self {
        let most = turns_max(fragments);
        let changes = self.changes.map(|pace| Pace { groups: pace.groups.min(most), ..pace });
        Self { groups: self.groups.min(most), changes, ..self }
    }

    /// Returns the change that a round follows, or the warm-up's end.
    fn change_at(&self, round: Round) -> Change {
        self.changes.before(round).copied().unwrap_or_else(|| match self.changes.cut_at() {
            // The steps of those rounds are unknown.
            Some(oldest) if !self.is_warmup(round) => *oldest,
            _ => self.first(),
        })
    }

    /// Returns the warm-up's end.
    fn first(&self) -> Change {
        let pace = Pace { overlap: self.overlap, groups: self.groups, every: self.every };
        Change { round: Round(self.warmup_rounds), step: self.warmup_steps(), pace }
    }

    fn warmup_steps(&self) -> u64 {
        self.warmup_rounds.saturating_mul(self.warmup_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_warmup_is_followed_by_the_steady_pace() {
        let schedule = RoundSchedule {
            warmup_rounds: 2,
            warmup_every: 3,
            every: 10,
            overlap: 10,
            groups: 1,
            exchanges: 1,
            steps: 30,
            changes: Changes::NONE,
        };
        let spans: Vec<_> = (0..schedule.rounds()).map(|r| schedule.steps_of(Round(r))).collect();
        assert_eq!(spans, [0..3, 3..6, 6..16, 16..26, 26..30]);
    }

    #[test]
    fn fragments_take_turns_between_the_warmup_and_the_last_round() {
        let schedule = RoundSchedule {
            warmup_rounds: 1,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups: 3,
            exchanges: 1,
            steps: 6,
            changes: Changes::NONE,
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
        let many = RoundSchedule { groups: 40, ..schedule };
        assert_eq!(
            [1, 3, 16, 45, 159, 1000].map(|count| many.for_fragments(count).groups),
            [1, 3, 5, 11, 39, 40]
        );
    }

    const STEADY: RoundSchedule = RoundSchedule {
        warmup_rounds: 2,
        warmup_every: 1,
        every: 2,
        overlap: 2,
        groups: 2,
        exchanges: 1,
        steps: 40,
        changes: Changes::NONE,
    };

    fn pace(every: u64, groups: u32) -> Pace {
        Pace { overlap: every, groups, every }
    }

    #[test]
    fn a_pace_may_change_where_steps_are_left_and_what_was_is_as_it_was() {
        let slower = STEADY.changed_at(Round(5), pace(10, 1));
        let spans: Vec<_> = (0..slower.rounds()).map(|r| slower.steps_of(Round(r))).collect();
        assert_eq!(spans, [0..1, 1..2, 2..4, 4..6, 6..8, 8..18, 18..28, 28..38, 38..40]);
        assert_eq!((slower.pace_in(Round(4)), slower.pace_in(Round(5))), (pace(2, 2), pace(10, 1)));
        let again = slower.changed_at(Round(6), pace(4, 3));
        assert_eq!(again.steps_of(Round(6)), 18..22);
        assert_eq!(again.changed_at(Round(5), pace(10, 1)), slower, "what was to come is not");
        assert_eq!(slower.changed_at(Round(9), pace(1, 1)), slower, "no steps are left");
        assert_eq!(slower.changed_at(Round(7), pace(10, 1)), slower, "nothing changes");
        let after = RoundSchedule { every: 5, overlap: 5, groups: 1, ..STEADY };
        assert_eq!(STEADY.changed_at(Round(1), pace(5, 1)), after, "the warm-up stays as it is");
    }

    /// Turns restart with a pace.
    #[test]
    fn fragments_take_turns_from_a_change_on() {
        let schedule = STEADY.changed_at(Round(5), pace(2, 3));
        let due =
            |round| (0..3).filter(|&f| schedule.is_due(Round(round), FragmentId(f))).collect::<Vec<_>>();
        assert_eq!(
            (2..8).map(due).collect::<Vec<_>>(),
            [vec![0, 2], vec![1], vec![0, 2], vec![0], vec![1], vec![2]]
        );
        assert_eq!(schedule.next_due(Round(5), FragmentId(2)), Round(7));
        let [fewer, more] = [2, 9].map(|fragments| schedule.for_fragments(fragments));
        assert_eq!((fewer.last_pace(), more), (pace(2, 2), schedule));
    }

    #[test]
    fn rounds_before_the_oldest_change_that_is_remembered_are_not_known() {
        let change =
            |schedule: RoundSchedule, n: u64| schedule.changed_at(Round(2 + 3 * n), pace(1 + n % 2, 1));
        let few = (1..=16).fold(RoundSchedule { steps: 1000, ..STEADY }, change);
        assert!(few.reaches(Round(0)) && few.is_consistent());
        let many = (17..=20).fold(few, change);
        assert!(many.is_consistent());
        let oldest = Round(2 + 3 * 5);
        assert!(many.reaches(oldest) && !many.reaches(Round(oldest.0 - 1)));
        for round in (oldest.0..many.rounds()).map(Round) {
            assert_eq!(many.steps_of(round).start, step_by_all(&few, &many, round), "{round}");
        }
        assert!(many.steps_of(Round(oldest.0 - 2)).is_empty());
        assert_eq!(many.round_of(4), oldest);
    }

    /// Returns a round's first step if no change is forgotten.
    fn step_by_all(few: &RoundSchedule, many: &RoundSchedule, round: Round) -> u64 {
        let all = [few, many].map(|schedule| schedule.changes.kept().to_vec()).concat();
        let last =
            all.iter().filter(|change| change.round <= round).max_by_key(|change| change.round).unwrap();
        (last.step + (round.0 - last.round.0) * last.pace.every).min(many.steps)
    }

    #[test]
    fn a_change_that_does_not_follow_is_found() {
        let good = STEADY.changed_at(Round(5), pace(10, 1)).changed_at(Round(6), pace(4, 3));
        assert!(good.is_consistent() && STEADY.is_consistent());
        let kept = [good.changes.kept()[0], good.changes.kept()[1]];
        let with = |changes: [Change; 2]| RoundSchedule {
            changes: changes.into_iter().fold(Changes::NONE, Changes::with),
            ..STEADY
        };
        assert!(with(kept).is_consistent());
        let [first, second] = kept;
        for bad in [
            with([Change { step: 9, ..first }, second]),
            with([first, Change { step: 19, ..second }]),
            with([first, Change { step: 8, ..second }]),
            with([Change { round: Round(1), step: 1, ..first }, second]),
            with([first, Change { pace: pace(0, 1), ..second }]),
            with([first, Change { pace: pace(1, 0), ..second }]),
            with([first, Change { round: Round(9), step: 40, ..second }]),
        ] {
            assert!(!bad.is_consistent(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_run_that_is_extended_goes_on_where_it_ended(
            warmup_rounds in 0u64..9, warmup_every in 1u64..9, every in 1u64..30, exchanges in 1u32..4, steps in 1u64..400, more in 1u64..200, later in 0u64..9,
            changes in proptest::collection::vec((1u64..9, 1u64..30, 1u32..6), 0..10),
        ) {
            let mut schedule = RoundSchedule { warmup_rounds, warmup_every, every, overlap: every, groups: 1, exchanges, steps, changes: Changes::NONE };
            let mut at = warmup_rounds;
            for (later, every, groups) in changes {
                at += later * u64::from(exchanges);
                schedule = schedule.changed_at(Round(at), pace(every, groups));
            }
            let rounds = Round(schedule.rounds());
            prop_assert_eq!(schedule.extended(rounds, steps), None);
            let Some(extended) = schedule.extended(rounds, steps + more) else {
                prop_assert!(rounds.0 <= warmup_rounds && steps % warmup_every > 0);
                return Ok(());
            };
            prop_assert!(extended.is_consistent());
            let known_from = extended.changes.cut_at().map_or(0, |oldest| oldest.round.0);
            for round in (known_from..rounds.0).map(Round) {
                prop_assert_eq!(extended.steps_of(round), schedule.steps_of(round));
            }
            // Later rounds may be abandoned again, and the run continue from its former end.
            let slower = extended.changed_at(Round(rounds.0 + later * u64::from(exchanges)), pace(every + 1, 1));
            let again = slower.changed_at(rounds, slower.last_pace());
            prop_assert!(slower.is_consistent() && again.is_consistent());
            prop_assert_eq!(again.step_of(rounds), steps);
            let mut next = steps;
            for round in (rounds.0..extended.rounds()).map(Round) {
                let span = extended.steps_of(round);
                prop_assert_eq!((span.start, span.is_empty()), (next, extended.exchange_of(round) > 0));
                for step in span.clone() {
                    prop_assert_eq!(extended.round_of(step), round);
                }
                next = span.end;
            }
            prop_assert_eq!(next, steps + more);
        }

        #[test]
        fn rounds_tile_the_steps_of_any_run(
            warmup_rounds in 0u64..9, warmup_every in 1u64..9, every in 1u64..30, exchanges in 1u32..4, steps in 1u64..400,
            changes in proptest::collection::vec((1u64..9, 1u64..30, 1u32..6), 0..20),
        ) {
            let mut schedule = RoundSchedule { warmup_rounds, warmup_every, every, overlap: every, groups: 1, exchanges, steps, changes: Changes::NONE };
            let mut at = warmup_rounds;
            for (later, every, groups) in changes {
                at += later * u64::from(exchanges);
                schedule = schedule.changed_at(Round(at), pace(every, groups));
                prop_assert!(schedule.is_consistent());
            }
            let known_from = schedule.changes.cut_at().map_or(0, |oldest| oldest.round.0);
            let mut next = schedule.steps_of(Round(known_from)).start;
            let mut exchanged = next;
            for round in (known_from..schedule.rounds()).map(Round) {
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
                for fragment in (0..6).map(FragmentId) {
                    let due = schedule.next_due(round, fragment);
                    prop_assert!((round.0..due.0).all(|earlier| !schedule.is_due(Round(earlier), fragment)));
                    prop_assert!(schedule.is_due(due, fragment));
                }
                next = span.end;
            }
            prop_assert_eq!(next, steps);
            prop_assert!(schedule.steps_of(Round(schedule.rounds())).is_empty());
        }
    }
}
