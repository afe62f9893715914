//! Encoding of kept positions: one entropy-coded stream for the whole fragment, of gaps or, where many are kept, of a
//! bitmap.

use super::DecodeError;
use super::bitmaps::{self, BitmapEncoder};
use super::chunks::{Chunk, Chunks};
use super::gap_model::GapModel;
use super::layout::Layout;
use super::rans::{RansDecoder, RansEncoder};

/// Values in a chunk, for selections that keep a number of the whole fragment.
const SCATTERED_CHUNK_VALUES: usize = 4096;

/// Encodes sets of positions; reuses its memory.
#[derive(Debug)]
pub(super) struct PositionEncoder {
    model: GapModel,
    coder: RansEncoder,
    bitmaps: BitmapEncoder,
}

impl PositionEncoder {
    pub fn new() -> Self {
        Self { model: GapModel::new(), coder: RansEncoder::default(), bitmaps: BitmapEncoder::default() }
    }

    /// Appends `positions` to `out`: ascending, with the number and places of `layout`.
    pub fn encode(&mut self, layout: Layout, positions: &[u32], out: &mut Vec<u8>) {
        match layout {
            Layout::All { .. } => return,
            Layout::Chunked(chunks) if bitmaps::is_dense(chunks) => {
                return self.bitmaps.encode(chunks, positions, out);
            }
            Layout::Chunked(chunks) => self.push_chunked(chunks, positions),
            Layout::Scattered { len, most, .. } => self.push_scattered(len, most, positions),
        }
        self.coder.finish(out);
    }

    fn push_chunked(&mut self, chunks: Chunks, positions: &[u32]) {
        self.coder.reserve(GapModel::SYMBOLS_MAX * positions.len());
        let mut rest = positions;
        for chunk in chunks.iter() {
            let (here, after) = rest.split_at(chunk.kept);
            rest = after;
            self.push_chunk(chunk, here);
        }
    }

    fn push_scattered(&mut self, len: usize, most: usize, positions: &[u32]) {
        let chunks = scattered_chunks(len);
        self.coder.reserve(GapModel::SYMBOLS_MAX * (most + chunks.count()));
        let mut counts = Counts::new(chunks, positions.len());
        let mut rest = positions;
        for chunk in chunks.iter() {
            let end = (chunk.start + chunk.len) as u32;
            let (here, after) = rest.split_at(rest.partition_point(|&position| position < end));
            rest = after;
            counts.push(here.len() as u32, self.model, &mut self.coder);
            self.push_chunk(chunk, here);
        }
    }

    fn push_chunk(&mut self, chunk: Chunk, positions: &[u32]) {
        let (mut next, end) = (chunk.start as u32, (chunk.start + chunk.len) as u32);
        for (&position, wanted) in positions.iter().zip((1..=positions.len() as u32).rev()) {
            self.model.push(position - next, end - next, wanted, &mut self.coder);
            next = position + 1;
        }
    }
}

/// Returns the chunks for selections that keep a number of the whole fragment: each may keep all its values.
fn scattered_chunks(len: usize) -> Chunks {
    Chunks { len, chunk: SCATTERED_CHUNK_VALUES, keep: SCATTERED_CHUNK_VALUES }
}

/// Codes the number of kept values in each chunk; all distributions over the chunks are equally likely.
///
/// With a star for each kept value and a bar between chunks, a count is the gap before the next bar.
struct Counts {
    chunks: u32,
    kept: u32,
}

impl Counts {
    fn new(chunks: Chunks, kept: usize) -> Self {
        Self { chunks: chunks.count() as u32, kept: kept as u32 }
    }

    /// Returns the remaining stars and bars, and the remaining bars.
    fn left(&self) -> (u32, u32) {
        let bars = self.chunks - 1;
        (self.kept + bars, bars)
    }

    fn push(&mut self, count: u32, model: GapModel, coder: &mut RansEncoder) {
        let (left, bars) = self.left();
        if bars > 0 {
            model.push(count, left, bars, coder);
        }
        self.chunks = bars;
        self.kept -= count;
    }

    /// Returns the count of a chunk. `None`: too few kept values remain, or the following chunks could not
    /// take the rest.
    fn take(
        &mut self,
        chunk: Chunk,
        len: usize,
        model: GapModel,
        coder: &mut RansDecoder<'_>,
    ) -> Option<u32> {
        let (left, bars) = self.left();
        let count = if bars > 0 { model.take(left, bars, coder) } else { self.kept };
        let after = len - chunk.start - chunk.len;
        self.chunks = bars;
        self.kept = self.kept.checked_sub(count)?;
        (count as usize <= chunk.len && self.kept as usize <= after).then_some(count)
    }
}

/// Decodes the output of [`PositionEncoder::encode`] for the same layout into `positions`.
///
/// The memory for `positions` is bounded by the fragment's length, which the caller has checked.
pub(super) fn decode(layout: Layout, bytes: &[u8], positions: &mut Vec<u32>) -> Result<(), DecodeError> {
    positions.clear();
    let (chunks, mut counts) = match layout {
        Layout::All { len } => (scattered_chunks(len), None),
        Layout::Chunked(chunks) => (chunks, None),
        Layout::Scattered { len, kept, .. } => {
            let chunks = scattered_chunks(len);
            (chunks, Some(Counts::new(chunks, kept)))
        }
    };
    let kept = layout.kept_total();
    positions.reserve(layout.kept_most());
    if kept == 0 || kept == chunks.len {
        // Nothing was written, as all positions are kept.
        positions.extend(0..kept as u32);
        return if bytes.is_empty() { Ok(()) } else { Err(DecodeError::PositionStream) };
    }
    if let Layout::Chunked(chunks) = layout
        && bitmaps::is_dense(chunks)
    {
        return bitmaps::decode(chunks, bytes, positions);
    }
    let model = GapModel::new();
    let mut coder = RansDecoder::new(bytes).ok_or(DecodeError::PositionStream)?;
    for chunk in chunks.iter() {
        let outside = DecodeError::Position { chunk_start: chunk.start };
        let kept = match &mut counts {
            None => chunk.kept as u32,
            Some(counts) => counts.take(chunk, chunks.len, model, &mut coder).ok_or(outside.clone())?,
        };
        let (mut next, end) = (chunk.start as u32, (chunk.start + chunk.len) as u32);
        for wanted in (1..=kept).rev() {
            let left = end - next;
            let gap = model.take(left, wanted, &mut coder);
            if gap > left - wanted {
                return Err(outside);
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
        let layout = Layout::Chunked(chunks);
        PositionEncoder::new().encode(layout, positions, &mut bytes);
        decode(layout, &bytes, &mut decoded).unwrap();
        assert_eq!(decoded, positions);
        bytes.len()
    }

    /// log2 C(n, k) as a sum of logarithms in f64.
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
            // A stream starts with the coder's states of 64 bits: four of a bitmap, or one.
            let states = if bitmaps::is_dense(chunks) { 4 * 64 } else { 64 };
            assert!((bits - states) as f64 <= 1.01 * floor_bits(chunks), "{keep}: {ratio}");
        }
    }

    #[test]
    fn the_most_uneven_sets_come_back() {
        let chunks = Chunks { len: 3 * 65_536 + 100, chunk: 65_536, keep: 64 };
        let first: Vec<u32> =
            chunks.iter().flat_map(|c| (c.start..c.start + c.kept).map(|i| i as u32)).collect();
        let end = |c: Chunk| c.start + c.len;
        let last: Vec<u32> =
            chunks.iter().flat_map(|c| (end(c) - c.kept..end(c)).map(|i| i as u32)).collect();
        round_trip(chunks, &first);
        round_trip(chunks, &last);
    }

    fn scattered_round_trip(len: usize, positions: &[u32]) -> usize {
        let layout = Layout::Scattered { len, kept: positions.len(), most: positions.len() };
        let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
        PositionEncoder::new().encode(layout, positions, &mut bytes);
        decode(layout, &bytes, &mut decoded).unwrap();
        assert_eq!(decoded, positions);
        bytes.len()
    }

    #[test]
    fn uniform_sets_of_the_whole_fragment_cost_within_two_per_cent_of_their_entropy() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for kept in [1 << 10, 10_486, 1 << 17] {
            let chunks = Chunks { len: 1 << 20, chunk: 1 << 20, keep: kept };
            let bits = 8 * scattered_round_trip(1 << 20, &random_positions(chunks, &mut rng));
            let ratio = bits as f64 / floor_bits(chunks);
            println!(
                "{kept} of 2^20: {:.3} bits a position, {ratio:.4} of the floor",
                bits as f64 / kept as f64
            );
            assert!((bits - 64) as f64 <= 1.02 * floor_bits(chunks), "{kept}: {ratio}");
        }
    }

    #[test]
    fn positions_that_all_lie_in_one_chunk_come_back() {
        const LEN: u32 = 1 << 26;
        for start in [0, 5 * 4096, LEN - 4096] {
            scattered_round_trip(LEN as usize, &(start..start + 4096).collect::<Vec<_>>());
            scattered_round_trip(LEN as usize, &[start + 17]);
        }
    }

    proptest! {
        #[test]
        fn any_set_of_the_whole_fragment_comes_back(seed: u64, len in 0_usize..70_000, part in 0.0..=1.0_f64) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let kept = (part.powi(6) * len as f64) as usize;
            // Crowded towards the start, as far as space permits.
            let mut positions: Vec<u32> = (0..kept)
                .map(|_| (rng.random::<f64>().powi(1 + (seed % 5) as i32) * len as f64) as u32)
                .collect();
            positions.sort_unstable();
            positions.dedup();
            scattered_round_trip(len, &positions);
        }

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
