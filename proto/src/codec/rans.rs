//! Range asymmetric numeral systems: an entropy coder that decodes with one multiplication a symbol.
//!
//! J. Duda, "Asymmetric numeral systems", arXiv 1311.2540; the 64-bit state with 32-bit words is the variant
//! of F. Giesen's `ryg_rans`. The coder is a stack: the last symbol encoded is decoded first. The encoder
//! therefore collects its steps and runs them backwards.

/// Bits of a symbol's probability: frequencies add up to `1 << PROBABILITY_BITS`.
pub(super) const PROBABILITY_BITS: u32 = 16;

/// The state stays in `STATE_MIN..STATE_MIN << 32`. It starts at `STATE_MIN`, where the decoder's ends.
const STATE_MIN: u64 = 1 << 31;

/// Bytes of the final state, at the start of the stream.
const STATE_BYTES: usize = 8;

/// Maximum raw bits with a symbol. Together they may take all but one bit of the state before it is refilled.
const RAW_BITS_MAX: u32 = 14;

/// The points `start..start + frequency` of `1 << PROBABILITY_BITS` assigned to one symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub start: u16,
    pub frequency: u16,
}

/// The low `bits` (at most [`RAW_BITS_MAX`]) bits of a number without others, each equally likely 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub value: u16,
    pub bits: u32,
}

/// Collects symbols and writes them as one stream; reuses its memory.
#[derive(Debug, Default)]
pub(super) struct RansEncoder {
    steps: Vec<(Interval, Raw)>,
    words: Vec<u32>,
}

impl RansEncoder {
    /// Reserves memory for `symbols` calls of [`RansEncoder::push`].
    pub fn reserve(&mut self, symbols: usize) {
        self.steps.reserve(symbols);
        self.words.reserve(symbols);
    }

    /// Appends the symbol with this share, and raw bits.
    pub fn push(&mut self, share: Interval, raw: Raw) {
        debug_assert!(raw.bits <= RAW_BITS_MAX && raw.value >> raw.bits == 0);
        self.steps.push((share, raw));
    }

    /// Writes the collected symbols to `out` and clears them. Without symbols it writes nothing.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.steps.is_empty() {
            return;
        }
        write_stream::<1>(self.steps.len(), |index| self.steps[index], &mut self.words, out);
        self.steps.clear();
    }
}

/// Writes a stream of `count` symbols to `out`. They go to `LANES` states in turn, which share one sequence
/// of words: encoder and decoder then work on several symbols at a time. `words` is scratch memory.
pub(super) fn write_stream<const LANES: usize>(
    count: usize,
    step: impl Fn(usize) -> (Interval, Raw),
    words: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    words.clear();
    let mut states = [STATE_MIN; LANES];
    let whole = count / LANES * LANES;
    for index in (whole..count).rev() {
        put(&mut states[index - whole], step(index), words);
    }
    // The lanes are constants here, so that the states stay in registers.
    for start in (0..whole).step_by(LANES).rev() {
        for lane in (0..LANES).rev() {
            put(&mut states[lane], step(start + lane), words);
        }
    }
    out.extend(states.iter().flat_map(|state| state.to_le_bytes()));
    out.extend(words.iter().rev().flat_map(|word| word.to_le_bytes()));
}

#[inline(always)]
fn put(state: &mut u64, (share, raw): (Interval, Raw), words: &mut Vec<u32>) {
    let frequency = u64::from(share.frequency);
    if *state >= ((STATE_MIN >> (PROBABILITY_BITS + raw.bits)) << 32) * frequency {
        words.push(*state as u32);
        *state >>= 32;
    }
    let point = u64::from(share.start) + *state % frequency;
    *state = (((*state / frequency) << PROBABILITY_BITS) + point) << raw.bits | u64::from(raw.value);
}

/// Reads a stream of [`write_stream`] or, with one lane, of [`RansEncoder`]. It accepts any bytes: symbols of
/// a damaged stream are arbitrary, and [`RansDecoder::is_complete`] detects the damage at the end.
#[derive(Debug)]
pub(super) struct RansDecoder<'a, const LANES: usize = 1> {
    states: [u64; LANES],
    words: std::slice::Iter<'a, [u8; 4]>,
    is_exhausted: bool,
}

impl<'a, const LANES: usize> RansDecoder<'a, LANES> {
    /// Returns `None` if the bytes are not whole words, or too few.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (states, rest) = bytes.split_at_checked(LANES * STATE_BYTES)?;
        let (words, []) = rest.as_chunks::<4>() else { return None };
        let states = states.as_chunks::<STATE_BYTES>().0;
        let states = std::array::from_fn(|lane| u64::from_le_bytes(states[lane]));
        Some(Self { states, words: words.iter(), is_exhausted: false })
    }

    /// Returns the point in the share of the lane's next symbol, which has `raw_bits` raw bits.
    #[inline(always)]
    pub fn peek(&self, lane: usize, raw_bits: u32) -> u16 {
        (self.states[lane] >> raw_bits) as u16
    }

    /// Consumes the symbol whose `share` contains the result of [`RansDecoder::peek`], and returns its raw
    /// bits. The lanes take turns, starting with the first.
    #[inline(always)]
    pub fn take(&mut self, lane: usize, share: Interval, raw_bits: u32) -> u16 {
        let raw = self.states[lane] & ((1 << raw_bits) - 1);
        let offset = u64::from(self.peek(lane, raw_bits).wrapping_sub(share.start));
        let mut state =
            u64::from(share.frequency) * (self.states[lane] >> (raw_bits + PROBABILITY_BITS)) + offset;
        if state < STATE_MIN {
            let word = self.words.next();
            self.is_exhausted |= word.is_none();
            state = state << 32 | u64::from(word.copied().map_or(0, u32::from_le_bytes));
        }
        self.states[lane] = state;
        raw as u16
    }

    /// Whether exactly the stream was consumed.
    pub fn is_complete(&self) -> bool {
        self.states == [STATE_MIN; LANES] && !self.is_exhausted && self.words.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the i-th symbol of the test's stream.
    fn step(i: u16) -> (Interval, Raw) {
        let shares = [(0, 60_000), (60_000, 5_535), (65_535, 1)];
        let (start, frequency) = shares[usize::from(i % 7 % 3)];
        let bits = u32::from(i) % (RAW_BITS_MAX + 1);
        (Interval { start, frequency }, Raw { value: i & ((1 << bits) - 1), bits })
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
        let mut decoder = RansDecoder::<1>::new(&bytes).unwrap();
        for (share, raw) in (0..1000).map(step) {
            assert!(!decoder.is_complete());
            assert!(decoder.peek(0, raw.bits).wrapping_sub(share.start) < share.frequency);
            assert_eq!(decoder.take(0, share, raw.bits), raw.value);
        }
        assert!(decoder.is_complete());
    }

    #[test]
    fn lanes_share_their_words_in_turn() {
        for symbols in [0_u16, 1, 3, 4, 1001] {
            let (mut words, mut bytes) = (Vec::new(), Vec::new());
            write_stream::<4>(symbols.into(), |index| step(index as u16), &mut words, &mut bytes);
            let mut decoder = RansDecoder::<4>::new(&bytes).unwrap();
            for (i, (share, raw)) in (0..symbols).map(step).enumerate() {
                assert!(decoder.peek(i % 4, raw.bits).wrapping_sub(share.start) < share.frequency);
                assert_eq!(decoder.take(i % 4, share, raw.bits), raw.value);
            }
            assert!(decoder.is_complete());
        }
    }

    #[test]
    fn a_stream_that_is_too_short_or_too_long_is_not_complete() {
        let mut bytes = encoded(100);
        let read_all = |bytes: &[u8]| {
            let mut decoder = RansDecoder::<1>::new(bytes).unwrap();
            (0..100).map(step).for_each(|(share, raw)| _ = decoder.take(0, share, raw.bits));
            decoder.is_complete()
        };
        assert!(read_all(&bytes));
        assert!(!read_all(&bytes[..bytes.len() - 4]));
        bytes.extend([0; 4]);
        assert!(!read_all(&bytes));
        assert!(RansDecoder::<1>::new(&bytes[..bytes.len() - 1]).is_none());
        assert!(RansDecoder::<1>::new(&bytes[..7]).is_none());
    }
}
