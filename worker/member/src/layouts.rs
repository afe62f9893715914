//! Partition of a round's values into fragments.

use longhaul_common::id::Round;
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;

/// The model's layout; with low-rank gradients, also those of the factors after the warm-up, with as many fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layouts {
    model: FragmentLayout,
    exchanges: Option<[FragmentLayout; 2]>,
    schedule: RoundSchedule,
    /// Whether all members compute whole gradients in the warm-up: its rounds carry one value of each fragment.
    redundant_warmup: bool,
}

impl Layouts {
    /// Creates the layouts of a model, with the values of both exchanges in low-rank runs.
    #[must_use]
    pub fn new(model: FragmentLayout, exchanges: Option<[usize; 2]>, schedule: RoundSchedule) -> Self {
        let cut = |values: usize| {
            let size = values.div_ceil(model.count().max(1) as usize).max(1);
            // A factor is shorter than its matrix, so its fragments are no larger than the model's.
            let fragment_values = u32::try_from(size).unwrap_or(u32::MAX);
            FragmentLayout { values: values as u64, fragment_values }
        };
        let exchanges = exchanges.map(|lengths| lengths.map(cut));
        Self { model, exchanges, schedule, redundant_warmup: false }
    }

    /// Sets whether the warm-up is redundant.
    #[must_use]
    pub fn with_redundant_warmup(self, redundant_warmup: bool) -> Self {
        Self { redundant_warmup, ..self }
    }

    /// Whether a round carries no gradient, as every member has computed all of it.
    #[must_use]
    pub fn is_redundant(&self, round: Round) -> bool {
        self.redundant_warmup && self.schedule.is_warmup(round)
    }

    /// Returns these layouts with another schedule.
    #[must_use]
    pub fn following(self, schedule: RoundSchedule) -> Self {
        Self { schedule, ..self }
    }

    /// Reports whether the run has low-rank gradients.
    #[must_use]
    pub fn has_exchanges(&self) -> bool {
        self.exchanges.is_some()
    }

    /// Returns the index of the factor exchange in a round, if the round is one.
    #[must_use]
    pub fn exchange_in(&self, round: Round) -> Option<u32> {
        let is_exchange = self.exchanges.is_some() && !self.schedule.is_warmup(round);
        is_exchange.then(|| self.schedule.exchange_of(round))
    }

    /// Returns the layout of a round's values.
    #[must_use]
    pub fn of(&self, round: Round) -> FragmentLayout {
        match (self.exchanges, self.exchange_in(round)) {
            (Some(layouts), Some(exchange)) => layouts[exchange.min(1) as usize],
            _ if self.is_redundant(round) => {
                FragmentLayout { values: u64::from(self.model.count()), fragment_values: 1 }
            }
            _ => self.model,
        }
    }

    /// Returns the number of values due in a round.
    #[must_use]
    pub fn values_in(&self, round: Round) -> usize {
        let due = self.schedule.due_stretches(&self.of(round), round);
        due.iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns a round's share of all values of a full exchange.
    #[must_use]
    pub fn share_of(&self, round: Round) -> f64 {
        self.values_in(round) as f64 / (self.of(round).values as f64).max(1.0)
    }

    /// Returns the model's layout.
    #[must_use]
    pub fn model(&self) -> FragmentLayout {
        self.model
    }

    /// Returns the schedule of rounds.
    #[must_use]
    pub fn schedule(&self) -> &RoundSchedule {
        &self.schedule
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::FragmentId;
    use longhaul_common::schedule::Changes;

    use super::*;

    #[test]
    fn factors_are_cut_into_as_many_fragments_as_the_model() {
        let model = FragmentLayout { values: 100, fragment_values: 30 };
        let schedule = RoundSchedule {
            warmup_rounds: 2,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups: 1,
            exchanges: 2,
            steps: 9,
            changes: Changes::NONE,
        };
        let layouts = Layouts::new(model, Some([11, 3]), schedule);
        let ranges =
            |round| (0..4).map(|f| layouts.of(Round(round)).range(FragmentId(f))).collect::<Vec<_>>();
        assert_eq!(ranges(1), [0..30, 30..60, 60..90, 90..100]);
        assert_eq!(ranges(2), [0..3, 3..6, 6..9, 9..11]);
        assert_eq!(ranges(3), [0..1, 1..2, 2..3, 3..3]);
        assert_eq!((layouts.exchange_in(Round(1)), layouts.exchange_in(Round(3))), (None, Some(1)));
    }

    #[test]
    fn what_is_due_in_a_round_is_counted_by_values() {
        let model = FragmentLayout { values: 100, fragment_values: 30 };
        let schedule = RoundSchedule {
            warmup_rounds: 1,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups: 2,
            exchanges: 1,
            steps: 9,
            changes: Changes::NONE,
        };
        let layouts = Layouts::new(model, None, schedule);
        assert_eq!([0, 1, 2].map(|round| layouts.values_in(Round(round))), [100, 60, 40]);
        assert_eq!([0, 1, 2].map(|round| layouts.share_of(Round(round))), [1.0, 0.6, 0.4]);
    }
}
