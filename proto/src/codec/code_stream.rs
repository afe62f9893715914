//! Entropy coding of the codes of a value section. The section itself does not change: this module shortens
//! and restores it.
//!
//! The layout is: all scales, a table of symbol frequencies, then the symbols in an rANS stream. A symbol is
//! a code of four bits, or the high bits of a code of eight.

use super::DecodeError;
use super::formats::Codes;
use super::header::Coding;
use super::layout::Layout;
use super::rans::{Interval, PROBABILITY_BITS, RansDecoder, Raw, write_stream};
use super::value_blocks::ValueBlocks;

/// Shares are whole slots. The decoder finds a symbol in a table of this many entries, which fits the L1
/// cache.
const SLOT_BITS: u32 = 12;

const SLOTS: usize = 1 << SLOT_BITS;

/// Maximum symbols of a table.
const SYMBOLS_MAX: usize = 256;

/// Minimum number of eight-bit codes for a table of all 256 codes, which then saves an eighth of a bit per
/// code net.
const WHOLE_BYTE_CODES_MIN: usize = 1 << 14;

/// Low bits of an eight-bit code sent uncoded below that number: neighbouring steps are about equally likely.
const RAW_BITS: u32 = 3;

/// States of the coder. Several states let the decoder work on several symbols at a time.
const LANES: usize = 4;

/// Minimum code bytes for several lanes, whose 24 more bytes are then negligible.
const LANES_CODE_BYTES_MIN: usize = 1 << 12;

/// Bytes of the section's length, which a frame's header then contains.
const LENGTH_BYTES: usize = 4;

/// Mapping of code bytes to symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alphabet {
    /// Two codes of four bits, low bits first.
    Nibbles,
    /// A byte without this many low bits.
    Bytes { raw_bits: u32 },
}

impl Alphabet {
    fn new(codes: Codes, count: usize) -> Self {
        match codes {
            Codes::Nibbles => Self::Nibbles,
            Codes::Bytes => Self::Bytes { raw_bits: if count < WHOLE_BYTE_CODES_MIN { RAW_BITS } else { 0 } },
        }
    }

    /// Returns the number of symbols; each takes a byte of the table.
    fn symbols(self) -> usize {
        match self {
            Self::Nibbles => 16,
            Self::Bytes { raw_bits } => SYMBOLS_MAX >> raw_bits,
        }
    }
}

/// Encodes sections; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct CodeEncoder {
    codes: Vec<u8>,
    words: Vec<u32>,
}

impl CodeEncoder {
    /// Writes the entropy-coded form of a packed section to `out` and returns the coding to send: the shorter
    /// one.
    pub fn encode(
        &mut self,
        codes: Codes,
        blocks: ValueBlocks,
        layout: Layout,
        section: &[u8],
        out: &mut Vec<u8>,
    ) -> Coding {
        let bytes_most = blocks.bytes(layout.kept_most());
        out.clear();
        out.reserve(bytes_most + SYMBOLS_MAX);
        self.codes.clear();
        self.codes.reserve(bytes_most);
        // A longer stream would exceed the codes.
        self.words.reserve(bytes_most.div_ceil(size_of::<u32>()));
        for block in blocks.split(section) {
            let (scales, packed) = block.split_at(blocks.scale_bytes());
            out.extend_from_slice(scales);
            self.codes.extend_from_slice(packed);
        }
        let alphabet = Alphabet::new(codes, layout.kept_total());
        let weights = weights(alphabet, &self.codes);
        out.extend_from_slice(&weights[..alphabet.symbols()]);
        let Some(table) = Table::new(&weights[..alphabet.symbols()]) else { return Coding::Packed };
        if self.codes.len() < LANES_CODE_BYTES_MIN {
            write_codes::<1>(alphabet, &table.shares, &self.codes, &mut self.words, out);
        } else {
            write_codes::<LANES>(alphabet, &table.shares, &self.codes, &mut self.words, out);
        }
        if out.len() + LENGTH_BYTES < section.len() {
            Coding::Entropy { codes, bytes: out.len() as u32 }
        } else {
            Coding::Packed
        }
    }
}

fn write_codes<const N: usize>(
    alphabet: Alphabet,
    shares: &[Interval; SYMBOLS_MAX],
    codes: &[u8],
    words: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    let share = |symbol: u8| shares[usize::from(symbol)];
    match alphabet {
        Alphabet::Nibbles => {
            let raw = Raw { value: 0, bits: 0 };
            let step = |index: usize| (share(codes[index / 2] >> (4 * (index % 2)) & 15), raw);
            write_stream::<N>(2 * codes.len(), step, words, out);
        }
        Alphabet::Bytes { raw_bits: 0 } => write_bytes::<N, 0>(shares, codes, words, out),
        Alphabet::Bytes { .. } => write_bytes::<N, RAW_BITS>(shares, codes, words, out),
    }
}

/// Writes eight-bit codes with `RAW` uncoded bits. `RAW` is a constant because this runs once per code.
fn write_bytes<const N: usize, const RAW: u32>(
    shares: &[Interval; SYMBOLS_MAX],
    codes: &[u8],
    words: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    let raw = |code: u8| Raw { value: u16::from(code) & ((1 << RAW) - 1), bits: RAW };
    let step = |index: usize| (shares[usize::from(codes[index] >> RAW)], raw(codes[index]));
    write_stream::<N>(codes.len(), step, words, out);
}

/// Returns symbol frequencies, scaled to 255 for the most frequent. At least two symbols occur, so no share
/// is the whole.
fn weights(alphabet: Alphabet, codes: &[u8]) -> [u8; SYMBOLS_MAX] {
    let mut bytes = [0_u32; 256];
    codes.iter().for_each(|&code| bytes[usize::from(code)] += 1);
    let mut counts = [0_u32; SYMBOLS_MAX];
    for (code, &count) in bytes.iter().enumerate() {
        match alphabet {
            Alphabet::Nibbles => {
                counts[code & 15] += count;
                counts[code >> 4] += count;
            }
            Alphabet::Bytes { raw_bits } => counts[code >> raw_bits] += count,
        }
    }
    let most = counts.iter().fold(1, |most, &count| most.max(count));
    let weight = |count: u32| (u64::from(count) * 255).div_ceil(u64::from(most)) as u8;
    let mut weights = counts.map(weight);
    if weights.iter().filter(|&&weight| weight > 0).count() < 2 {
        weights[..2].iter_mut().for_each(|weight| *weight = (*weight).max(1));
    }
    weights
}

/// Shares of symbols, and the symbol of each slot.
struct Table {
    shares: [Interval; SYMBOLS_MAX],
    symbols: [u8; SLOTS],
}

impl Table {
    /// Returns `None` if fewer than two symbols have a weight.
    fn new(weights: &[u8]) -> Option<Self> {
        let occurring = weights.iter().filter(|&&weight| weight > 0).count();
        if occurring < 2 {
            return None;
        }
        let total: usize = weights.iter().map(|&weight| usize::from(weight)).sum();
        let mut shares = [Interval { start: 0, frequency: 0 }; SYMBOLS_MAX];
        let mut symbols = [0; SLOTS];
        let (mut start, mut ordinal, mut sum) = (0, 0, 0);
        for (symbol, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0) {
            // One slot each; the rest in proportion.
            ordinal += 1;
            sum += usize::from(weight);
            let end = ordinal + (SLOTS - occurring) * sum / total;
            shares[symbol] = Interval {
                start: (start << (PROBABILITY_BITS - SLOT_BITS)) as u16,
                frequency: ((end - start) << (PROBABILITY_BITS - SLOT_BITS)) as u16,
            };
            symbols[start..end].fill(symbol as u8);
            start = end;
        }
        Some(Self { shares, symbols })
    }

    /// Takes the lane's next symbol, with its raw bits.
    #[inline(always)]
    fn take<const N: usize>(&self, coder: &mut RansDecoder<'_, N>, lane: usize, raw_bits: u32) -> u8 {
        let slot = coder.peek(lane, raw_bits) >> (PROBABILITY_BITS - SLOT_BITS);
        let symbol = self.symbols[usize::from(slot)];
        let raw = coder.take(lane, self.shares[usize::from(symbol)], raw_bits);
        symbol << raw_bits | raw as u8
    }
}

/// Restores packed sections; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct CodeDecoder {
    codes: Vec<u8>,
    section: Vec<u8>,
}

impl CodeDecoder {
    /// Creates a decoder without memory.
    pub const fn new() -> Self {
        Self { codes: Vec::new(), section: Vec::new() }
    }

    /// Restores the packed section from the output of [`CodeEncoder::encode`].
    ///
    /// The memory follows from the layout, which the caller has checked.
    pub fn decode(
        &mut self,
        codes: Codes,
        blocks: ValueBlocks,
        layout: Layout,
        bytes: &[u8],
    ) -> Result<&[u8], DecodeError> {
        let (count, scale_bytes) = (layout.kept_total(), blocks.scale_bytes());
        let (alphabet, section_bytes) = (Alphabet::new(codes, count), blocks.bytes(count));
        let scales_bytes = count.div_ceil(blocks.block_values) * scale_bytes;
        let (scales, rest) = bytes.split_at_checked(scales_bytes).ok_or(DecodeError::CodeStream)?;
        let (weights, stream) = rest.split_at_checked(alphabet.symbols()).ok_or(DecodeError::CodeStream)?;
        let table = Table::new(weights).ok_or(DecodeError::CodeTable)?;

        let bytes_most = blocks.bytes(layout.kept_most());
        self.codes.reserve(bytes_most.saturating_sub(self.codes.len()));
        self.codes.resize(section_bytes - scales_bytes, 0);
        if self.codes.len() < LANES_CODE_BYTES_MIN {
            read_codes::<1>(alphabet, &table, stream, &mut self.codes)?;
        } else {
            read_codes::<LANES>(alphabet, &table, stream, &mut self.codes)?;
        }

        self.section.clear();
        self.section.reserve(bytes_most);
        let packed = self.codes.chunks(blocks.block_codes_bytes());
        for (scales, packed) in scales.chunks(scale_bytes).zip(packed) {
            self.section.extend_from_slice(scales);
            self.section.extend_from_slice(packed);
        }
        Ok(&self.section)
    }
}

fn read_codes<const N: usize>(
    alphabet: Alphabet,
    table: &Table,
    stream: &[u8],
    codes: &mut [u8],
) -> Result<(), DecodeError> {
    let mut coder = RansDecoder::<N>::new(stream).ok_or(DecodeError::CodeStream)?;
    match alphabet {
        Alphabet::Nibbles => in_groups::<N>(codes, |at| {
            let low = table.take(&mut coder, 2 * at % N, 0);
            low | table.take(&mut coder, (2 * at + 1) % N, 0) << 4
        }),
        Alphabet::Bytes { raw_bits } => in_groups::<N>(codes, |at| table.take(&mut coder, at, raw_bits)),
    }
    if coder.is_complete() { Ok(()) } else { Err(DecodeError::CodeStream) }
}

/// Sets each byte, in order, to the result of `read` for its place in its group of `N`. Places are constants
/// in whole groups, so that the coder's states stay in registers.
#[inline(always)]
fn in_groups<const N: usize>(bytes: &mut [u8], mut read: impl FnMut(usize) -> u8) {
    let (groups, tail) = bytes.as_chunks_mut::<N>();
    for group in groups {
        for (at, byte) in group.iter_mut().enumerate() {
            *byte = read(at);
        }
    }
    tail.iter_mut().enumerate().for_each(|(at, byte)| *byte = read(at));
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::{Selection, ValueFormat, formats};
    use super::*;

    /// Returns the formats with entropy-codable codes.
    fn coded_formats() -> impl Iterator<Item = (ValueFormat, Codes)> {
        ValueFormat::ALL.into_iter().filter_map(|format| Some((format, formats::of(format).shape().codes?)))
    }

    /// Returns a packed section of these values.
    fn section(format: ValueFormat, values: &[f32]) -> (ValueBlocks, Layout, Vec<u8>) {
        let blocks = ValueBlocks::new(Selection::All, format);
        let mut section = Vec::new();
        blocks.quantise(values, None, &mut section);
        (blocks, Layout::All { len: values.len() }, section)
    }

    /// Nearly normal values: sums of twelve uniform ones.
    fn normal(len: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        (0..len).map(|_| (0..12).map(|_| rng.random_range(-0.5_f32..0.5)).sum()).collect()
    }

    #[test]
    fn a_section_comes_back_whether_it_became_shorter_or_not() {
        let mut encoder = CodeEncoder::default();
        let mut decoder = CodeDecoder::new();
        let mut coded = Vec::new();
        for (format, codes) in coded_formats() {
            for len in [0, 1, 2, 127, 129, 5000, 40_001] {
                let one_outlier = [1.0].into_iter().chain([1e-6; 40_000]).take(len).collect();
                for values in [normal(len), vec![0.0; len], vec![-1.0; len], one_outlier] {
                    let (blocks, layout, section) = section(format, &values);
                    let coding = encoder.encode(codes, blocks, layout, &section, &mut coded);
                    let is_shorter = coded.len() + LENGTH_BYTES < section.len();
                    assert_eq!(matches!(coding, Coding::Entropy { .. }), is_shorter, "{format}, {len}");
                    assert_eq!(
                        decoder.decode(codes, blocks, layout, &coded),
                        Ok(&section[..]),
                        "{format}, {len}"
                    );
                }
            }
        }
    }

    /// Bits per symbol by Shannon's formula, in f64.
    fn entropy(symbols: impl Iterator<Item = u8>) -> f64 {
        let mut counts = [0_u32; 256];
        symbols.for_each(|symbol| counts[usize::from(symbol)] += 1);
        let total = f64::from(counts.iter().sum::<u32>());
        let shares = counts.iter().filter(|&&count| count > 0).map(|&count| f64::from(count) / total);
        shares.map(|share| -share * share.log2()).sum()
    }

    #[test]
    fn normal_values_cost_their_entropy_to_half_a_per_cent() {
        let values = normal(1 << 20);
        for (format, codes) in coded_formats() {
            let (blocks, layout, section) = section(format, &values);
            let mut coded = Vec::new();
            let coding = CodeEncoder::default().encode(codes, blocks, layout, &section, &mut coded);
            assert!(matches!(coding, Coding::Entropy { .. }));
            let packed = blocks.split(&section).flat_map(|block| &block[2..]);
            let floor = match codes {
                Codes::Bytes => entropy(packed.copied()),
                Codes::Nibbles => entropy(packed.flat_map(|code| [code & 15, code >> 4])),
            };
            let scales = 16.0 / 128.0;
            let bits = 8.0 * coded.len() as f64 / values.len() as f64 - scales;
            println!("{format}: {bits:.3} bits a code, {floor:.3} by its entropy");
            assert!(bits >= floor && bits <= 1.005 * floor, "{format}: {bits} and {floor}");
        }
    }
}
