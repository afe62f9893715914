//! The mean of a round whose results arrive one by one.

use std::collections::BTreeSet;

use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::Decoder;
use longhaul_proto::round::FragmentResult;

use super::layouts::Layouts;
use crate::reduce::mean::set_result;
use crate::sparse_ranges::SparseRanges;

/// Decodes results on arrival, so that only the last one is left at the end. For one round at a time: further results stay encoded.
#[derive(Default)]
pub(super) struct Arriving {
    round: Option<Round>,
    /// Arbitrary where nothing is decoded yet.
    mean: SparseRanges,
    decoded: BTreeSet<FragmentId>,
    damaged: usize,
    /// Memory of an earlier mean.
    spare: Vec<f32>,
}

impl Arriving {
    /// Decodes a result, unless another round's mean is incomplete or not yet taken.
    pub fn add(
        &mut self,
        layouts: &Layouts,
        round: Round,
        fragment: FragmentId,
        result: &FragmentResult,
        decoder: &mut Decoder,
    ) {
        let layout = layouts.of(round);
        if self.round.is_none() {
            let memory = std::mem::take(&mut self.spare);
            let mean = SparseRanges::reusing(memory, layouts.schedule().due_stretches(&layout, round));
            *self = Self { round: Some(round), mean, ..Self::default() };
        }
        if self.round == Some(round)
            && let Some(mean) = self.mean.get_mut(layout.range(fragment))
            && self.decoded.insert(fragment)
        {
            self.damaged += set_result(result, decoder, mean);
        }
    }

    /// Returns the mean of a round with these results, one per fragment.
    pub fn take(
        &mut self,
        layouts: &Layouts,
        round: Round,
        results: &[FragmentResult],
        decoder: &mut Decoder,
    ) -> SparseRanges {
        let mut arrived = match self.round == Some(round) {
            true => std::mem::take(self),
            false => Self { spare: std::mem::take(&mut self.spare), ..Self::default() },
        };
        let nothing = FragmentResult::nothing();
        for (at, fragment) in layouts.of(round).fragments().enumerate() {
            arrived.add(layouts, round, fragment, results.get(at).unwrap_or(&nothing), decoder);
        }
        let Self { mean, damaged, .. } = arrived;
        if damaged > 0 {
            tracing::warn!(round = round.0, damaged, "contributions that do not decode were left out");
        }
        mean
    }

    /// Takes back the memory of a mean, for the next one.
    pub fn give_back(&mut self, mean: SparseRanges) {
        self.spare = mean.into_memory();
    }

    /// Drops decoded results: they may no longer be valid.
    pub fn forget(&mut self) {
        let mean = std::mem::take(&mut self.mean);
        *self = Self { spare: mean.into_memory(), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::ValueFormat;
    use longhaul_common::id::SiteId;
    use longhaul_common::plan::FragmentLayout;
    use longhaul_common::schedule::{Changes, RoundSchedule};
    use longhaul_proto::codec::{CodecSpec, Encoder, Selection};
    use longhaul_proto::round::{Content, Contribution};

    use super::*;

    fn layouts(groups: u32) -> Layouts {
        let schedule = RoundSchedule {
            warmup_rounds: 0,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups,
            exchanges: 1,
            steps: 99,
            changes: Changes::NONE,
        };
        Layouts::new(FragmentLayout { values: 5, fragment_values: 2 }, None, schedule)
    }

    fn result(values: &[f32]) -> FragmentResult {
        let mut body = Vec::new();
        let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
        encoder.encode(0, values, &mut body).unwrap();
        let body = bytes::Bytes::from(body);
        FragmentResult::mean(&[Contribution { site: SiteId(0), weight: 1, body: body.clone() }], body)
    }

    #[test]
    fn a_mean_is_that_of_the_results_that_count_whatever_came_before() {
        let round = |seed: f32| [[seed, 1.0], [2.0, seed], [seed, 0.0]];
        let results = |seed: f32| {
            let [one, two, three] = round(seed);
            vec![result(&one), result(&two), result(&three[..1])]
        };
        let mean = |seed: f32| SparseRanges::whole(vec![seed, 1.0, 2.0, seed, seed]);
        let layouts = &layouts(1);
        let (mut arriving, mut decoder) = (Arriving::default(), Decoder::default());
        let mut add = |arriving: &mut Arriving, of: u64, fragment: u32, seed: f32| {
            let result = &results(seed)[fragment as usize];
            arriving.add(layouts, Round(of), FragmentId(fragment), result, &mut decoder);
        };
        add(&mut arriving, 4, 1, 7.0);
        // A result of the next round, while this one waits to be taken.
        add(&mut arriving, 5, 0, 9.0);
        add(&mut arriving, 4, 2, 7.0);
        assert_eq!(arriving.take(layouts, Round(4), &results(7.0), &mut decoder), mean(7.0));
        let mut decoder = Decoder::default();
        assert_eq!(arriving.take(layouts, Round(5), &results(9.0), &mut decoder), mean(9.0));
        // A round repeated by another generation.
        arriving.add(layouts, Round(6), FragmentId(0), &results(3.0)[0], &mut decoder);
        arriving.forget();
        assert_eq!(arriving.take(layouts, Round(6), &results(4.0), &mut decoder), mean(4.0));
    }

    #[test]
    fn where_fragments_take_turns_a_mean_is_of_those_that_are_due() {
        let nothing = FragmentResult { contributors: Vec::new(), content: Content::Bundle(Vec::new()) };
        let (layouts, mut decoder) = (layouts(3), Decoder::default());
        let due = layouts.schedule().due_stretches(&layouts.of(Round(1)), Round(1));
        let [due] = due.as_slice() else { panic!("a third of three fragments: {due:?}") };
        let results = layouts.of(Round(1)).fragments().map(|fragment| {
            let range = layouts.of(Round(1)).range(fragment);
            if range == *due { result(&vec![3.0; range.len()]) } else { nothing.clone() }
        });
        let results: Vec<_> = results.collect();
        let mean = Arriving::default().take(&layouts, Round(1), &results, &mut decoder);
        assert_eq!(mean.get(due.clone()), Some(vec![3.0; due.len()].as_slice()));
        assert_eq!(mean.get(0..5), None);
    }
}
