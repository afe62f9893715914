//! Encoding of dense sets of positions: a bit for each value of the fragment, eight of them a symbol.
//!
//! All bits count as independent, with the share p of kept values, in 256 parts: a byte of n ones has the probability
//! pⁿ·(1 − p)⁸⁻ⁿ. Beyond log2 C(chunk, keep) this takes some log2 √(2π·keep·(1 − p)) bits a chunk: under seven for up to
//! half of 4096. A symbol stands for eight values. Coding one needs no division by the number of remaining positions, which
//! gaps need, and four coder states run in parallel.

use std::sync::OnceLock;

use super::DecodeError;
use super::chunks::Chunks;
use super::rans::{Interval, PROBABILITY_BITS, RansDecoder, Raw, write_stream};

/// Sets of fewer than one in this many are encoded as gaps, which are then as fast.
const SPARSE: usize = 32;

/// Shares of kept values are in this many parts.
const PARTS: usize = 256;

/// Symbols of a table.
const SYMBOLS: usize = 256;

/// States of the coder.
const LANES: usize = 4;

/// Bytes of the bitmap decoded at a time.
const DECODED_BYTES: usize = 64;

const NO_RAW: Raw = Raw { value: 0, bits: 0 };

/// Whether positions in these chunks are encoded as a bitmap.
pub(super) fn is_dense(chunks: Chunks) -> bool {
    chunks.keep * SPARSE >= chunks.chunk
}

/// Encodes bitmaps; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct BitmapEncoder {
    bytes: Vec<u8>,
    words: Vec<u32>,
}

impl BitmapEncoder {
    /// Appends ascending positions, of which each chunk has its number, to `out`: nothing if all values are kept.
    pub fn encode(&mut self, chunks: Chunks, positions: &[u32], out: &mut Vec<u8>) {
        if positions.is_empty() || positions.len() == chunks.len {
            return;
        }
        self.bytes.clear();
        self.bytes.resize(chunks.len.div_ceil(8), 0);
        for &position in positions {
            self.bytes[position as usize / 8] |= 1 << (position % 8);
        }
        // A stream is hardly longer than the bitmap.
        self.words.clear();
        self.words.reserve(self.bytes.len() / size_of::<u32>() + LANES);
        let (bytes, table) = (&self.bytes, table_of(chunks));
        write_stream::<LANES>(bytes.len(), |at| (table.share(bytes[at]), NO_RAW), &mut self.words, out);
    }
}

/// Appends the positions from the output of [`BitmapEncoder::encode`] for the same chunks, not all of whose values are kept.
///
/// # Errors
/// A chunk with another number of positions, or a damaged stream.
pub(super) fn decode(chunks: Chunks, bytes: &[u8], positions: &mut Vec<u32>) -> Result<(), DecodeError> {
    let mut coder = RansDecoder::<LANES>::new(bytes).ok_or(DecodeError::PositionStream)?;
    let (table, kept) = (table_of(chunks), chunks.kept_total());
    let len = chunks.len.div_ceil(8);
    let mut group = [0; DECODED_BYTES];
    for start in (0..len).step_by(DECODED_BYTES) {
        let (rows, rest) = group[..DECODED_BYTES.min(len - start)].as_chunks_mut::<LANES>();
        // The lanes are constants, so that the states stay in registers.
        for row in rows {
            (0..LANES).for_each(|lane| row[lane] = table.take(&mut coder, lane));
        }
        rest.iter_mut().enumerate().for_each(|(lane, byte)| *byte = table.take(&mut coder, lane));
        group[len.min(start + DECODED_BYTES) - start..].fill(0);
        let ones: u32 = group.iter().map(|byte| byte.count_ones()).sum();
        if positions.len() + ones as usize > kept {
            return Err(DecodeError::PositionStream);
        }
        for (word, at) in group.as_chunks().0.iter().zip((8 * start..).step_by(64)) {
            append_ones(u64::from_le_bytes(*word), at as u32, positions);
        }
    }
    if !coder.is_complete() || positions.len() != kept {
        return Err(DecodeError::PositionStream);
    }
    check_chunks(chunks, positions)
}

/// Appends `start` plus the place of each one in a word, from the lowest bit on.
pub(super) fn append_ones(mut word: u64, start: u32, positions: &mut Vec<u32>) {
    // One unpredictable end of a loop for each word costs less than one for each byte.
    while word != 0 {
        positions.push(start + word.trailing_zeros());
        word &= word - 1;
    }
}

/// Checks ascending positions, the right number in all: those of a chunk lie in it.
fn check_chunks(chunks: Chunks, positions: &[u32]) -> Result<(), DecodeError> {
    let mut rest = positions;
    for chunk in chunks.iter() {
        let (here, after) = rest.split_at(chunk.kept);
        rest = after;
        let is_in = |position: &u32| (chunk.start..chunk.start + chunk.len).contains(&(*position as usize));
        if !(here.first().is_none_or(is_in) && here.last().is_none_or(is_in)) {
            return Err(DecodeError::Position { chunk_start: chunk.start });
        }
    }
    Ok(())
}

/// Shares of the probability by byte.
#[derive(Debug)]
struct Table {
    starts: [u16; SYMBOLS],
    /// The symbol of each point: a search would be a branch that nobody foresees.
    symbols: Box<[u8]>,
}

/// Returns the table for the chunks' share of kept values.
fn table_of(chunks: Chunks) -> &'static Table {
    static TABLES: [OnceLock<Table>; PARTS] = [const { OnceLock::new() }; PARTS];
    // Of all values: a short chunk keeps a larger share.
    let part = (chunks.kept_total() * PARTS + chunks.len / 2) / chunks.len.max(1);
    let part = part.clamp(1, PARTS - 1);
    TABLES[part].get_or_init(|| Table::new(part))
}

impl Table {
    /// Uses only additions and multiplications of f64, and truncation. IEEE 754 defines their results bit for bit, so encoder and decoder agree on all machines.
    fn new(part: usize) -> Self {
        let one = part as f64 / PARTS as f64;
        let shared = f64::from((1_u32 << PROBABILITY_BITS) - SYMBOLS as u32);
        let mut below = 0.0;
        let starts = std::array::from_fn(|byte| {
            // Every symbol has a share of at least one.
            let start = byte as u16 + (shared * f64::min(below, 1.0)) as u16;
            let bits = (0..8).map(|bit| if byte >> bit & 1 == 1 { one } else { 1.0 - one });
            below += bits.fold(1.0, |product, bit| product * bit);
            start
        });
        let mut symbols = vec![0; 1 << PROBABILITY_BITS];
        for (byte, &start) in (0..=u8::MAX).zip(&starts) {
            symbols[usize::from(start)..].fill(byte);
        }
        Self { starts, symbols: symbols.into() }
    }

    fn share(&self, byte: u8) -> Interval {
        let start = self.starts[usize::from(byte)];
        // The last share ends at 1 << PROBABILITY_BITS, which is 0 in 16 bits.
        let end = self.starts.get(usize::from(byte) + 1).copied().unwrap_or(0);
        Interval { start, frequency: end.wrapping_sub(start) }
    }

    /// Takes the lane's next byte.
    #[inline(always)]
    fn take(&self, coder: &mut RansDecoder<'_, LANES>, lane: usize) -> u8 {
        let byte = self.symbols[usize::from(coder.peek(lane, 0))];
        coder.take(lane, self.share(byte), 0);
        byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> impl Iterator<Item = Table> {
        (1..PARTS).map(Table::new)
    }

    #[test]
    fn shares_are_the_bytes_probabilities() {
        for (part, table) in (1..).zip(tables()) {
            let one = f64::from(part) / PARTS as f64;
            let total: u32 = (0..=255).map(|byte| u32::from(table.share(byte).frequency)).sum();
            assert_eq!(total, 1 << PROBABILITY_BITS);
            for byte in 0..=255_u8 {
                let ones = byte.count_ones() as i32;
                let probability = one.powi(ones) * (1.0 - one).powi(8 - ones);
                let share = f64::from(table.share(byte).frequency) / f64::from(1 << PROBABILITY_BITS);
                assert!((share - probability).abs() < 3.1e-5 + 0.004 * probability, "{part}: {byte}");
            }
        }
    }

    #[test]
    fn positions_that_lie_in_other_chunks_or_are_too_many_are_refused() {
        let chunks = Chunks { len: 20, chunk: 8, keep: 3 };
        let decoded = |positions: &[u32]| {
            let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
            BitmapEncoder::default().encode(chunks, positions, &mut bytes);
            decode(chunks, &bytes, &mut decoded).map(|()| decoded)
        };
        let good = [0, 4, 7, 8, 9, 10, 16, 18, 19];
        assert_eq!(decoded(&good), Ok(good.to_vec()));
        assert_eq!(decoded(&[0, 4, 8, 9, 10, 11, 16, 18, 19]), Err(DecodeError::Position { chunk_start: 0 }));
        assert_eq!(decoded(&[0, 4, 5, 7, 9, 10, 16, 18, 19]), Err(DecodeError::Position { chunk_start: 8 }));
        assert_eq!(decoded(&[0, 4, 7, 8, 9, 10, 18, 19, 23]), Err(DecodeError::Position { chunk_start: 16 }));
        for other in [&good[..8], &[0, 4, 5, 7, 8, 9, 10, 16, 18, 19]] {
            assert_eq!(decoded(other), Err(DecodeError::PositionStream));
        }
    }

    #[test]
    fn the_tables_are_the_same_on_every_platform() {
        let mut hasher = blake3::Hasher::new();
        for start in tables().flat_map(|table| table.starts) {
            hasher.update(&start.to_le_bytes());
        }
        assert_eq!(&hasher.finalize().to_hex()[..32], "4282cbc600b70ec47f5213c55ef31018");
    }
}
