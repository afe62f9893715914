//! Kept positions as bytes: one entropy-coded stream for the whole fragment.

use super::DecodeError;
use super::chunks::Chunks;
use super::gap_model::GapModel;
use super::rans::{RansDecoder, RansEncoder};

/// Writes sets of positions. Its memory is reused from fragment to fragment.
#[derive(Debug)]
pub(super) struct PositionEncoder {
    model: GapModel,
    coder: RansEncoder,
}

impl PositionEncoder {
    pub fn new() -> Self {
        Self { model: GapModel::new(), coder: RansEncoder::default() }
    }

    /// Appends `positions` (ascending, as many of each chunk as it keeps) to `out`.
    pub fn encode(&mut self, chunks: Chunks, positions: &[u32], out: &mut Vec<u8>) {
        self.coder.reserve(GapModel::SYMBOLS_MAX * positions.len());
        let mut rest = positions;
        for chunk in chunks.iter() {
            let (here, after) = rest.split_at(chunk.kept);
            rest = after;
            let (mut next, end) = (chunk.start as u32, (chunk.start + chunk.len) as u32);
            for (&position, wanted) in here.iter().zip((1..=chunk.kept as u32).rev()) {
                self.model.push(position - next, end - next, wanted, &mut self.coder);
                next = position + 1;
            }
        }
        self.coder.finish(out);
    }
}

/// Reads into `positions` what [`PositionEncoder::encode`] wrote for the same chunks.
///
/// The memory for `positions` is bounded by the fragment's length, which the caller has checked.
pub(super) fn decode(chunks: Chunks, bytes: &[u8], positions: &mut Vec<u32>) -> Result<(), DecodeError> {
    positions.clear();
    positions.reserve(chunks.kept_total());
    if chunks.kept_total() == chunks.len {
        // Nothing to tell, so nothing was written.
        positions.extend(0..chunks.len as u32);
        return if bytes.is_empty() { Ok(()) } else { Err(DecodeError::PositionStream) };
    }
    let model = GapModel::new();
    let mut coder = RansDecoder::new(bytes).ok_or(DecodeError::PositionStream)?;
    for chunk in chunks.iter() {
        let (mut next, end) = (chunk.start as u32, (chunk.start + chunk.len) as u32);
        for wanted in (1..=chunk.kept as u32).rev() {
            let left = end - next;
            let gap = model.take(left, wanted, &mut coder);
            if gap > left - wanted {
                return Err(DecodeError::Position { chunk_start: chunk.start });
            }
            positions.push(next + gap);
            next += gap + 1;
        }
    }
    if coder.is_complete() { Ok(()) } else { Err(DecodeError::PositionStream) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::seq::index;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn random_positions(chunks: Chunks, rng: &mut ChaCha8Rng) -> Vec<u32> {
        let mut positions = Vec::new();
        for chunk in chunks.iter() {
            let mut here = index::sample(rng, chunk.len, chunk.kept).into_vec();
            here.sort_unstable();
            positions.extend(here.into_iter().map(|i| (chunk.start + i) as u32));
        }
        positions
    }

    fn round_trip(chunks: Chunks, positions: &[u32]) -> usize {
        let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
        PositionEncoder::new().encode(chunks, positions, &mut bytes);
        decode(chunks, &bytes, &mut decoded).unwrap();
        assert_eq!(decoded, positions);
        bytes.len()
    }

    /// log2 C(n, k) by a sum of logarithms in f64.
    fn floor_bits(chunks: Chunks) -> f64 {
        let of_chunk =
            |n: usize, k: usize| (0..k).map(|i| ((n - i) as f64 / (k - i) as f64).log2()).sum::<f64>();
        chunks.iter().map(|chunk| of_chunk(chunk.len, chunk.kept)).sum()
    }

    #[test]
    fn uniform_sets_cost_within_one_per_cent_of_their_entropy() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for keep in [4, 8, 16, 41, 64, 128, 256, 1024] {
            let chunks = Chunks { len: 1 << 20, chunk: 4096, keep };
            let bits = 8 * round_trip(chunks, &random_positions(chunks, &mut rng));
            let ratio = bits as f64 / floor_bits(chunks);
            println!(
                "{keep} of 4096: {:.3} bits a position, {ratio:.4} of the floor",
                bits as f64 / (256 * keep) as f64
            );
            // A stream opens with the coder's state of 64 bits.
            assert!((bits - 64) as f64 <= 1.01 * floor_bits(chunks), "{keep}: {ratio}");
        }
    }

    #[test]
    fn the_most_uneven_sets_come_back() {
        let chunks = Chunks { len: 3 * 65_536 + 100, chunk: 65_536, keep: 64 };
        let first: Vec<u32> =
            chunks.iter().flat_map(|c| (c.start..c.start + c.kept).map(|i| i as u32)).collect();
        let end = |c: super::super::chunks::Chunk| c.start + c.len;
        let last: Vec<u32> =
            chunks.iter().flat_map(|c| (end(c) - c.kept..end(c)).map(|i| i as u32)).collect();
        round_trip(chunks, &first);
        round_trip(chunks, &last);
    }

    proptest! {
        #[test]
        fn any_set_comes_back(seed: u64, log2 in 0_u32..=16, len in 0_usize..70_000) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let chunk = 1_usize << log2;
            // Densities of all magnitudes.
            let keep_max = 1 << rng.random_range(0..=log2);
            let keep = rng.random_range(1..=keep_max);
            let len = len.min(20 * chunk);
            let chunks = Chunks { len, chunk, keep };
            round_trip(chunks, &random_positions(chunks, &mut rng));
        }
    }
}
