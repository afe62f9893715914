//! Chunked top-k: the k largest magnitudes of each chunk, exactly and deterministically.

use longhaul_common::config::SyncConfig;
use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use super::magnitudes::{append_largest, cut_to_largest, gather_at_least};
use super::{Memory, Rule, Selection, Shape, chunk_values_default};
use crate::codec::SpecError;
use crate::codec::chunks::{self, Chunks};
use crate::codec::layout::Layout;

/// Minimum columns of the matrix into which a chunk is arranged: enough for the vector units.
const COLUMNS_MIN: usize = 256;

/// Columns for each kept value. With four, the bound from the column maxima passes about a tenth more values
/// than are kept.
const COLUMNS_PER_KEPT: usize = 4;

/// The `keep` largest magnitudes of each chunk; lower positions win ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// Values in a chunk: a power of two, at most [`CHUNK_VALUES_MAX`](crate::codec::CHUNK_VALUES_MAX). The fragment's last
    /// chunk may be shorter.
    #[serde(default = "chunk_values_default")]
    pub chunk: u32,
    /// Values kept of each chunk, `1..=chunk`; a shorter chunk keeps at most all.
    pub keep: u32,
}

impl TopK {
    /// Returns this selection, or all values if all of a chunk are kept.
    #[must_use]
    pub fn or_all(chunk: u32, keep: u32) -> Selection {
        if keep == chunk { Selection::All } else { Self { chunk, keep }.into() }
    }

    fn chunks(self, len: usize) -> Chunks {
        Chunks { len, chunk: self.chunk as usize, keep: self.keep as usize }
    }
}

impl From<TopK> for Selection {
    fn from(rule: TopK) -> Self {
        Self::TopK(rule)
    }
}

impl Rule for TopK {
    fn validate(&self) -> Result<(), SpecError> {
        chunks::validate(self.chunk, self.keep)
    }

    fn shape(&self) -> Shape {
        Shape::of(self.chunk, self.keep)
    }

    fn read(shape: Shape) -> Option<Self> {
        let rule = Self { chunk: shape.chunk()?, keep: shape.keep };
        rule.validate().is_ok().then_some(rule)
    }

    fn layout(&self, len: usize, _: usize) -> Option<Layout> {
        Some(Layout::Chunked(self.chunks(len)))
    }

    fn group_values(&self) -> usize {
        self.keep as usize
    }

    fn select(&self, values: &[f32], memory: &mut Memory, positions: &mut Vec<u32>) {
        let chunks = self.chunks(values.len());
        positions.reserve(chunks.kept_total());
        for chunk in chunks.iter() {
            memory.select_chunk(
                &values[chunk.start..][..chunk.len],
                chunk.kept,
                chunk.start as u32,
                positions,
            );
        }
    }

    fn kept_share(&self) -> f64 {
        f64::from(self.keep) / f64::from(self.chunk)
    }

    fn configured(config: &SyncConfig) -> Selection {
        Self::or_all(config.chunk, config.keep)
    }
}

impl Memory {
    fn select_chunk(&mut self, values: &[f32], keep: usize, start: u32, positions: &mut Vec<u32>) {
        if keep == values.len() {
            positions.extend(start..start + values.len() as u32);
            return;
        }
        let Some(bound) = self.lower_bound(values, keep) else {
            append_largest(values, keep, &mut self.keys, start, positions);
            return;
        };
        let candidates = gather_at_least(values, bound, &mut self.candidates);
        cut_to_largest(candidates, values, keep, &mut self.keys);
        positions.extend(candidates[..keep].iter().map(|candidate| start + candidate));
    }

    /// Returns a lower bound of the `keep`-th largest magnitude: the `keep`-th largest of the column maxima,
    /// with the values in a matrix row by row. `None`: too many are kept.
    fn lower_bound(&mut self, values: &[f32], keep: usize) -> Option<f32> {
        let columns = (COLUMNS_PER_KEPT * keep).next_power_of_two().max(COLUMNS_MIN);
        if columns >= values.len() {
            return None;
        }
        self.maxima.clear();
        self.maxima.resize(columns, 0.0);
        values.chunks(columns).for_each(|row| take_larger(&mut self.maxima, row));
        self.keys.collect(self.maxima.iter().copied());
        Some(f32::from_bits(self.keys.kth_largest(keep)))
    }
}

#[multiversion(targets = "simd")]
fn take_larger(maxima: &mut [f32], row: &[f32]) {
    let pairs = maxima.iter_mut().zip(row);
    // f32::max treats NaN specially, which costs more instructions.
    pairs.for_each(|(maximum, value)| *maximum = if value.abs() > *maximum { value.abs() } else { *maximum });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sorts all values by magnitude, then by position.
    fn by_sorting(chunks: Chunks, values: &[f32]) -> Vec<u32> {
        let mut positions = Vec::new();
        for chunk in chunks.iter() {
            let mut order: Vec<usize> = (chunk.start..chunk.start + chunk.len).collect();
            order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
            order.truncate(chunk.kept);
            order.sort_unstable();
            positions.extend(order.into_iter().map(|position| position as u32));
        }
        positions
    }

    /// Few different magnitudes make many ties.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let spread = prop_oneof![Just(2), Just(30), Just(1_000_000)];
        (spread, 0_usize..5000)
            .prop_flat_map(|(n, len)| prop::collection::vec((-n..=n).prop_map(|i| i as f32 * 1e-3), len))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_selection_is_that_of_sorting_the_chunk(values in values(), log2 in 0_u32..=12, part in 0.0..1.0_f64) {
            let chunk = 1_usize << log2;
            let keep = 1 + (part.powi(4) * (chunk - 1) as f64) as usize;
            let rule = TopK { chunk: chunk as u32, keep: keep as u32 };
            let mut positions = Vec::new();
            rule.select(&values, &mut Memory::default(), &mut positions);
            prop_assert_eq!(positions, by_sorting(rule.chunks(values.len()), &values));
        }
    }
}
