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

/// Raw bits that can go with a symbol: together they may take all but one bit of the state before it is refilled.
const RAW_BITS_MAX: u32 = 14;

/// The points `start..start + frequency` of `1 << PROBABILITY_BITS` that stand for one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub start: u16,
    pub frequency: u16,
}

/// The low `bits` (at most [`RAW_BITS_MAX`]) bits of a number that has no others, each as likely as not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub value: u16,
    pub bits: u32,
}

/// Collects symbols and writes them as one stream. Its memory is reused from stream to stream.
#[derive(Debug, Default)]
pub(super) struct RansEncoder {
    steps: Vec<(Share, Raw)>,
    words: Vec<u32>,
}

impl RansEncoder {
    /// Makes room for `symbols` calls of [`RansEncoder::push`], so that they do not allocate.
    pub fn reserve(&mut self, symbols: usize) {
        self.steps.reserve(symbols);
        self.words.reserve(symbols);
    }

    /// Appends the symbol that owns `share`, and raw bits with it.
    pub fn push(&mut self, share: Share, raw: Raw) {
        debug_assert!(raw.bits <= RAW_BITS_MAX && raw.value >> raw.bits == 0);
        self.steps.push((share, raw));
    }

    /// Writes what was pushed to `out` and forgets it. Nothing pushed, nothing written.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.steps.is_empty() {
            return;
        }
        self.words.clear();
        let mut state = STATE_MIN;
        for (share, raw) in self.steps.iter().rev() {
            let frequency = u64::from(share.frequency);
            if state >= ((STATE_MIN >> (PROBABILITY_BITS + raw.bits)) << 32) * frequency {
                self.words.push(state as u32);
                state >>= 32;
            }
            let point = u64::from(share.start) + state % frequency;
            state = (((state / frequency) << PROBABILITY_BITS) + point) << raw.bits | u64::from(raw.value);
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

    /// The point that lies in the share of the next symbol, which has `raw_bits` raw bits with it.
    pub fn peek(&self, raw_bits: u32) -> u16 {
        (self.state >> raw_bits) as u16
    }

    /// Consumes the symbol in whose `share` lies what [`RansDecoder::peek`] returned, and returns its raw bits.
    pub fn take(&mut self, share: Share, raw_bits: u32) -> u16 {
        let raw = self.state & ((1 << raw_bits) - 1);
        let offset = u64::from(self.peek(raw_bits).wrapping_sub(share.start));
        self.state = u64::from(share.frequency) * (self.state >> (raw_bits + PROBABILITY_BITS)) + offset;
        if self.state < STATE_MIN {
            let word = self.words.next();
            self.is_exhausted |= word.is_none();
            self.state = self.state << 32 | u64::from(word.copied().map_or(0, u32::from_le_bytes));
        }
        raw as u16
    }

    /// Whether exactly the stream has been consumed.
    pub fn is_complete(&self) -> bool {
        self.state == STATE_MIN && !self.is_exhausted && self.words.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The i-th symbol of the test's stream.
    fn step(i: u16) -> (Share, Raw) {
        let shares = [(0, 60_000), (60_000, 5_535), (65_535, 1)];
        let (start, frequency) = shares[usize::from(i % 7 % 3)];
        let bits = u32::from(i) % (RAW_BITS_MAX + 1);
        (Share { start, frequency }, Raw { value: i & ((1 << bits) - 1), bits })
    }

    fn encoded(symbols: u16) -> Vec<u8> {
        let (mut encoder, mut bytes) = (RansEncoder::default(), Vec::new());
        (0..symbols).map(step).for_each(|(share, raw)| encoder.push(share, raw));
        encoder.finish(&mut bytes);
        bytes
    }

    #[test]
    fn symbols_and_raw_bits_come_back_in_order_and_complete() {
        let bytes = encoded(1000);
        let mut decoder = RansDecoder::new(&bytes).unwrap();
        for (share, raw) in (0..1000).map(step) {
            assert!(!decoder.is_complete());
            assert!(decoder.peek(raw.bits).wrapping_sub(share.start) < share.frequency);
            assert_eq!(decoder.take(share, raw.bits), raw.value);
        }
        assert!(decoder.is_complete());
    }

    #[test]
    fn a_stream_that_is_too_short_or_too_long_is_not_complete() {
        let mut bytes = encoded(100);
        let read_all = |bytes: &[u8]| {
            let mut decoder = RansDecoder::new(bytes).unwrap();
            (0..100).map(step).for_each(|(share, raw)| _ = decoder.take(share, raw.bits));
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
