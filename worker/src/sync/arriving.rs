//! The mean of a round whose results come one by one.

use std::collections::BTreeSet;

use longhaul_common::id::{FragmentId, Round};
use longhaul_common::plan::FragmentLayout;
use longhaul_proto::codec::Decoder;
use longhaul_proto::round::FragmentResult;

use super::mean::add_result;

/// Results are decoded as they come, so that when the last one is here only that one is left to do. One round at a time: a member whose device
/// is behind keeps the others as they came.
#[derive(Default)]
pub(super) struct Arriving {
    round: Option<Round>,
    mean: Vec<f32>,
    decoded: BTreeSet<FragmentId>,
    damaged: usize,
}

impl Arriving {
    /// Decodes a result, unless another round's mean is in the making, or waits to be taken.
    pub fn add(
        &mut self,
        layout: FragmentLayout,
        round: Round,
        fragment: FragmentId,
        result: &FragmentResult,
        decoder: &mut Decoder,
    ) {
        if self.round.is_none() {
            let mean = vec![0.0; layout.values as usize];
            *self = Self { round: Some(round), mean, ..Self::default() };
        }
        if self.round == Some(round) && self.decoded.insert(fragment) {
            self.damaged += add_result(result, 1.0, decoder, &mut self.mean[layout.range(fragment)]);
        }
    }

    /// The mean of a round with these results, one for each fragment.
    pub fn take(
        &mut self,
        layout: FragmentLayout,
        round: Round,
        results: &[FragmentResult],
        decoder: &mut Decoder,
    ) -> Vec<f32> {
        let mut arrived = if self.round == Some(round) { std::mem::take(self) } else { Self::default() };
        for (fragment, result) in layout.fragments().zip(results) {
            arrived.add(layout, round, fragment, result, decoder);
        }
        let Self { mean, damaged, .. } = arrived;
        if damaged > 0 {
            tracing::warn!(round = round.0, damaged, "contributions that do not decode were left out");
        }
        mean
    }

    /// What was decoded may not be a result any more.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::ValueFormat;
    use longhaul_common::id::SiteId;
    use longhaul_proto::codec::{CodecSpec, Encoder, Selection};
    use longhaul_proto::round::Contribution;

    use super::*;

    const LAYOUT: FragmentLayout = FragmentLayout { values: 5, fragment_values: 2 };

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
        let mean = |seed: f32| vec![seed, 1.0, 2.0, seed, seed];
        let (mut arriving, mut decoder) = (Arriving::default(), Decoder::default());
        let mut add = |arriving: &mut Arriving, of: u64, fragment: u32, seed: f32| {
            let result = &results(seed)[fragment as usize];
            arriving.add(LAYOUT, Round(of), FragmentId(fragment), result, &mut decoder);
        };
        add(&mut arriving, 4, 1, 7.0);
        // The next round's, while this one waits to be taken.
        add(&mut arriving, 5, 0, 9.0);
        add(&mut arriving, 4, 2, 7.0);
        assert_eq!(arriving.take(LAYOUT, Round(4), &results(7.0), &mut decoder), mean(7.0));
        let mut decoder = Decoder::default();
        assert_eq!(arriving.take(LAYOUT, Round(5), &results(9.0), &mut decoder), mean(9.0));
        // A round that is made again by another generation.
        arriving.add(LAYOUT, Round(6), FragmentId(0), &results(3.0)[0], &mut decoder);
        arriving.forget();
        assert_eq!(arriving.take(LAYOUT, Round(6), &results(4.0), &mut decoder), mean(4.0));
    }
}
