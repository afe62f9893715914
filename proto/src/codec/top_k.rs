//! Chunked top-k: the k largest magnitudes of each chunk, exactly and deterministically.

use super::chunks::Chunks;

/// Columns of the matrix as which a chunk is seen are at least this many: enough for the vector units.
const COLUMNS_MIN: usize = 256;

/// Columns for each kept value. With four of them, the bound from the column maxima lets through some tenth more
/// values than are kept.
const COLUMNS_PER_KEPT: usize = 4;

/// Values that are tested together when gathering candidates.
const GATHER_VALUES: usize = 16;

/// Selects the largest magnitudes of chunks. Its memory is reused from chunk to chunk.
#[derive(Debug, Default)]
pub(super) struct TopK {
    maxima: Vec<f32>,
    candidates: Vec<u32>,
    /// Magnitudes as integers, which order as the floats do; partitioned in place.
    keys: Vec<u32>,
}

impl TopK {
    /// Writes the kept positions of all chunks, ascending. `values` are finite, and as many as `chunks` says.
    pub fn select(&mut self, chunks: Chunks, values: &[f32], positions: &mut Vec<u32>) {
        positions.clear();
        positions.reserve(chunks.kept_total());
        for chunk in chunks.iter() {
            self.select_chunk(&values[chunk.start..][..chunk.len], chunk.kept, chunk.start as u32, positions);
        }
    }

    fn select_chunk(&mut self, values: &[f32], keep: usize, start: u32, positions: &mut Vec<u32>) {
        if keep == values.len() {
            positions.extend(start..start + values.len() as u32);
            return;
        }
        let bound = self.lower_bound(values, keep);
        let count = self.gather_candidates(values, bound);
        let candidates = &mut self.candidates[..count];
        let threshold = kth_largest(&mut self.keys, candidates, values, keep);

        let above = self.keys.iter().filter(|&&key| key > threshold).count();
        keep_from(candidates, values, threshold, keep - above);
        positions.extend(candidates[..keep].iter().map(|candidate| start + candidate));
    }

    /// A magnitude that the `keep`-th largest is not below: the `keep`-th largest of the column maxima, where the
    /// values fill a matrix row by row.
    fn lower_bound(&mut self, values: &[f32], keep: usize) -> f32 {
        let columns = (COLUMNS_PER_KEPT * keep).next_power_of_two().max(COLUMNS_MIN);
        if columns >= values.len() {
            return 0.0;
        }
        self.maxima.clear();
        self.maxima.resize(columns, 0.0);
        for row in values.chunks(columns) {
            for (maximum, value) in self.maxima.iter_mut().zip(row) {
                // Not f32::max, whose treatment of NaN costs more instructions.
                *maximum = if value.abs() > *maximum { value.abs() } else { *maximum };
            }
        }
        self.keys.clear();
        self.keys.extend(self.maxima.iter().map(|maximum| maximum.to_bits()));
        let (_, &mut bound, _) = self.keys.select_nth_unstable(columns - keep);
        f32::from_bits(bound)
    }

    /// Collects the positions of the values whose magnitude is at least `bound`, ascending; returns how many they are.
    fn gather_candidates(&mut self, values: &[f32], bound: f32) -> usize {
        self.candidates.resize(values.len(), 0);
        let (blocks, tail) = values.as_chunks::<GATHER_VALUES>();
        let mut count = 0;
        for (index, block) in blocks.iter().enumerate() {
            if block.iter().fold(false, |any, value| any | (value.abs() >= bound)) {
                gather_from(block, index * GATHER_VALUES, bound, &mut self.candidates, &mut count);
            }
        }
        gather_from(tail, blocks.len() * GATHER_VALUES, bound, &mut self.candidates, &mut count);
        count
    }
}

/// Which values pass is as good as random, so this has no branch on it: each is written, and overwritten by the next
/// unless it counts.
fn gather_from(block: &[f32], start: usize, bound: f32, candidates: &mut [u32], count: &mut usize) {
    for (offset, value) in block.iter().enumerate() {
        candidates[*count] = (start + offset) as u32;
        *count += usize::from(value.abs() >= bound);
    }
}

/// Moves to the front, in their order, the candidates above the threshold and the first `ties` at it; without branches
/// for the same reason.
fn keep_from(candidates: &mut [u32], values: &[f32], threshold: u32, mut ties: usize) {
    let mut kept = 0;
    for index in 0..candidates.len() {
        let candidate = candidates[index];
        let key = key(values[candidate as usize]);
        let is_kept_tie = (key == threshold) & (ties > 0);
        ties -= usize::from(is_kept_tie);
        candidates[kept] = candidate;
        kept += usize::from((key > threshold) | is_kept_tie);
    }
}

/// The k-th largest magnitude of the candidates, all of which `keys` then holds.
fn kth_largest(keys: &mut Vec<u32>, candidates: &[u32], values: &[f32], k: usize) -> u32 {
    keys.clear();
    keys.extend(candidates.iter().map(|&candidate| key(values[candidate as usize])));
    let ascending = keys.len() - k;
    *keys.select_nth_unstable(ascending).1
}

fn key(value: f32) -> u32 {
    value.abs().to_bits()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sorts everything: by magnitude, then by position.
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
            let chunks = Chunks { len: values.len(), chunk, keep };
            let mut positions = Vec::new();
            TopK::default().select(chunks, &values, &mut positions);
            prop_assert_eq!(positions, by_sorting(chunks, &values));
        }
    }
}
