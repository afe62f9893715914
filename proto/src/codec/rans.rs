//! Range asymmetric numeral systems: an entropy coder that decodes with one multiplication a symbol.
//!
//! J. Duda, "Asymmetric numeral systems", arXiv 1311.2540; the 64-bit state with 32-bit words is the variant of
//! F. Giesen's `ryg_rans`. The coder is a stack: what is encoded last is decoded first, so the encoder collects its
//! steps and runs them backwards.

/// Bits of a symbol's probability: frequencies add up to `1 << PROBABILITY_BITS`.
pub(super) const PROBABILITY_BITS: u32 = 16;

/// The state is kept in `STATE_MIN..STATE_MIN << 32`; it starts, and the decoder's ends, at `STATE_MIN`.
const STATE_MIN: u64 = 1 << 31;

/// Bytes of the final state, which opens the stream.
const STATE_BYTES: usize = 8;

/// The share `start..start + frequency` of `1 << bits` that stands for one symbol.
#[derive(Clone, Copy, Debug)]
struct Step {
    start: u16,
    frequency: u16,
    bits: u8,
}

/// Collects symbols and writes them as one stream. Its memory is reused from stream to stream.
#[derive(Debug, Default)]
pub(super) struct RansEncoder {
    steps: Vec<Step>,
    words: Vec<u32>,
}

impl RansEncoder {
    /// Makes room for `symbols` calls of the `push` functions, so that they do not allocate.
    pub fn reserve(&mut self, symbols: usize) {
        self.steps.reserve(symbols);
        self.words.reserve(symbols);
    }

    /// Appends the symbol that owns `start..start + frequency` of `1 << PROBABILITY_BITS`.
    pub fn push_symbol(&mut self, start: u16, frequency: u16) {
        self.steps.push(Step { start, frequency, bits: PROBABILITY_BITS as u8 });
    }

    /// Appends the low `bits` (at most 16) bits of a number that has no others, each as likely as not.
    pub fn push_raw(&mut self, value: u16, bits: u32) {
        self.steps.push(Step { start: value, frequency: 1, bits: bits as u8 });
    }

    /// Writes what was pushed to `out` and forgets it. Nothing pushed, nothing written.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.steps.is_empty() {
            return;
        }
        self.words.clear();
        let mut state = STATE_MIN;
        for &Step { start, frequency, bits } in self.steps.iter().rev() {
            let (start, frequency) = (u64::from(start), u64::from(frequency));
            if state >= ((STATE_MIN >> bits) << 32) * frequency {
                self.words.push(state as u32);
                state >>= 32;
            }
            state = if frequency == 1 {
                (state << bits) + start
            } else {
                ((state / frequency) << bits) + state % frequency + start
            };
        }
        self.steps.clear();
        out.extend_from_slice(&state.to_le_bytes());
        out.extend(self.words.iter().rev().flat_map(|word| word.to_le_bytes()));
    }
}

/// Reads a stream of [`RansEncoder`]. Any bytes can be read: symbols of a damaged stream are arbitrary, and
/// [`RansDecoder::is_complete`] tells at the end.
#[derive(Debug)]
pub(super) struct RansDecoder<'a> {
    state: u64,
    words: std::slice::Iter<'a, [u8; 4]>,
    is_exhausted: bool,
}

impl<'a> RansDecoder<'a> {
    /// None if the bytes cannot be a stream: not whole words, or too few of them.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (state, rest) = bytes.split_first_chunk::<STATE_BYTES>()?;
        let (words, []) = rest.as_chunks::<4>() else { return None };
        Some(Self { state: u64::from_le_bytes(*state), words: words.iter(), is_exhausted: false })
    }

    /// The point in `0..1 << PROBABILITY_BITS` that lies in the next symbol's share.
    pub fn peek(&self) -> u16 {
        self.state as u16
    }

    /// Consumes the symbol that owns the share in which [`RansDecoder::peek`] lies.
    pub fn take_symbol(&mut self, start: u16, frequency: u16) {
        let offset = u64::from(self.peek() - start);
        self.state = u64::from(frequency) * (self.state >> PROBABILITY_BITS) + offset;
        self.refill();
    }

    /// Consumes `bits` (at most 16) bits.
    pub fn take_raw(&mut self, bits: u32) -> u16 {
        let value = self.state & ((1 << bits) - 1);
        self.state >>= bits;
        self.refill();
        value as u16
    }

    /// Whether exactly the stream has been consumed.
    pub fn is_complete(&self) -> bool {
        self.state == STATE_MIN && !self.is_exhausted && self.words.len() == 0
    }

    fn refill(&mut self) {
        if self.state < STATE_MIN {
            let word = self.words.next();
            self.is_exhausted |= word.is_none();
            let word = word.copied().map_or(0, u32::from_le_bytes);
            self.state = self.state << 32 | u64::from(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_and_raw_bits_come_back_in_order_and_complete() {
        let mut encoder = RansEncoder::default();
        let shares = [(0_u16, 60_000_u16), (60_000, 5_535), (65_535, 1)];
        for i in 0..1000_u16 {
            let (start, frequency) = shares[usize::from(i % 7 % 3)];
            encoder.push_symbol(start, frequency);
            encoder.push_raw(i, 16);
            encoder.push_raw(i & 31, 5);
        }
        let mut bytes = Vec::new();
        encoder.finish(&mut bytes);

        let mut decoder = RansDecoder::new(&bytes).unwrap();
        for i in 0..1000_u16 {
            let (start, frequency) = shares[usize::from(i % 7 % 3)];
            assert!((start..=start + (frequency - 1)).contains(&decoder.peek()));
            decoder.take_symbol(start, frequency);
            assert_eq!(decoder.take_raw(16), i);
            assert_eq!(decoder.take_raw(5), i & 31);
        }
        assert!(decoder.is_complete());
    }

    #[test]
    fn a_stream_that_is_too_short_or_too_long_is_not_complete() {
        let mut encoder = RansEncoder::default();
        (0..100).for_each(|i| encoder.push_raw(i, 16));
        let mut bytes = Vec::new();
        encoder.finish(&mut bytes);

        let read_all = |bytes: &[u8]| {
            let mut decoder = RansDecoder::new(bytes).unwrap();
            (0..100).for_each(|_| _ = decoder.take_raw(16));
            decoder.is_complete()
        };
        assert!(read_all(&bytes));
        assert!(!read_all(&bytes[..bytes.len() - 4]));
        bytes.extend([0; 4]);
        assert!(!read_all(&bytes));
        assert!(RansDecoder::new(&bytes[..bytes.len() - 1]).is_none());
        assert!(RansDecoder::new(&bytes[..7]).is_none());
    }
}
