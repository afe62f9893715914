//! Detection of four-byte or eight-byte numbers in a file declared to hold two-byte ones.

/// Minimum of pairs of two-byte numbers; shorter files show no vocabulary.
const PAIRS_MIN: usize = 16;
/// Upper bound of the high half of a four-byte token: ids below 2^18. Larger ids of bigger vocabularies (Gemma 3: slightly above 262,144) are
/// not recognised.
const HIGH_HALF_MAX: u16 = 3;
const FOUR_BYTES: &str = "a file with numbers of four bytes, as it seems, and its name stands for two: say format = \"tokens-u32\", or \"tokens-u16\" if they are of two";
const EIGHT_BYTES: &str = "a file with numbers of eight bytes, as it seems (numpy's int64), and its name stands for two: write them with `array.astype('<u2').tofile(...)`, or '<u4' and format = \"tokens-u32\" beyond 65,535; or say format = \"tokens-u16\" if they are of two";

/// Consecutive pairs of two-byte numbers that count as wide numbers: 4 KiB of a file. In each pair the second number is 0 to 3, in half of them
/// 0, and half of the first numbers are above 3. Tokens of a text hardly form such a run. Other streams with small numbers at every second place do:
/// states and actions, pitches and durations, bytes of ten-bit samples, bytes of UTF-16. They are indistinguishable from four-byte numbers and need
/// an explicit `format`.
const RUN_PAIRS: u32 = 1 << 10;
/// Minimum of distinct nonzero low halves in such a run: a repeated phrase (`Go!Go!Go!`) has fewer.
const DIFFERENT_MIN: usize = 16;
/// Minimum of zero pairs, the upper halves of eight-byte numbers, among every other pair of such a run. The margin covers a few similar pairs
/// before the run.
const UPPER_MIN: u32 = RUN_PAIRS / 2 / 8 * 7;

/// Refuses four-byte or eight-byte numbers at the start of a file: all high halves are 0 to 3, and half of the low ones are above 3. In a file of a
/// few numbers, zeros and other values alternate.
pub(super) fn check(head: &[u8]) -> Result<(), String> {
    let halves: Vec<u16> =
        head.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]])).collect();
    let are_of = |width: usize| match halves.len() < 2 * PAIRS_MIN {
        true => head.len().is_multiple_of(2 * width) && take_turns(&halves, width),
        false => are_wide(&halves, width),
    };
    match () {
        () if are_of(4) => Err(EIGHT_BYTES.to_owned()),
        () if are_of(2) => Err(FOUR_BYTES.to_owned()),
        () => Ok(()),
    }
}

const EIGHT_FOR_FOUR: &str = "a file with numbers of eight bytes, as it seems (numpy's int64), and its format stands for four: write them with `array.astype('<u4').tofile(...)`";
/// Minimum of eight-byte numbers for a decision in a file of four-byte tokens.
const EIGHTS_MIN: usize = 4;

/// Refuses eight-byte numbers in a file of four-byte tokens: all upper halves are 0, and most lower ones are not.
pub(super) fn check_four(head: &[u8]) -> Result<(), String> {
    let number = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let eights = || head.chunks_exact(8).map(|bytes| (number(&bytes[..4]), number(&bytes[4..])));
    let (count, low) = (eights().count(), eights().filter(|(low, _)| *low).count());
    let are_eights = count >= EIGHTS_MIN && eights().all(|(_, high)| !high) && 2 * low > count;
    if are_eights { Err(EIGHT_FOR_FOUR.to_owned()) } else { Ok(()) }
}

const FOUR_SAID: &str = "a file with numbers of four bytes, as it seems, since every second one of two bytes is 0, and its format stands for two: say format = \"tokens-u32\"";
const EIGHT_SAID: &str = "a file with numbers of eight bytes, as it seems (numpy's int64), since three of four numbers of two bytes are 0, and its format stands for two: write them with `array.astype('<u2').tofile(...)`";

/// Minimum of different numbers: fewer may alternate with 0, as in toy data.
const SAID_DIFFERENT_MIN: usize = 4;

/// Refuses four-byte or eight-byte numbers at the start of a file configured as two-byte ones: the upper halves of a two-byte vocabulary are 0.
pub(super) fn check_said(tokens: &[u32]) -> Result<(), String> {
    let pairs = || tokens.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    let (count, low) = (pairs().count(), pairs().filter(|(low, _)| *low != 0).count());
    if count < EIGHTS_MIN || pairs().any(|(_, high)| high != 0) {
        return Ok(());
    }
    let mut different: Vec<u32> = Vec::new();
    for (low, _) in pairs() {
        if low != 0 && different.len() < SAID_DIFFERENT_MIN && !different.contains(&low) {
            different.push(low);
        }
    }
    if different.len() < SAID_DIFFERENT_MIN {
        return Ok(());
    }
    let are_eights = pairs().skip(1).step_by(2).all(|(low, _)| low == 0);
    match (are_eights, count) {
        (true, count) if 4 * low > count => Err(EIGHT_SAID.to_owned()),
        (_, count) if 2 * low > count => Err(FOUR_SAID.to_owned()),
        _ => Ok(()),
    }
}

/// Whether many numbers of `width` halves are all tokens of a vocabulary.
fn are_wide(halves: &[u16], width: usize) -> bool {
    let is_small = |number: &[u16]| number[1] <= HIGH_HALF_MAX && number[2..].iter().all(|half| *half == 0);
    let numbers = || halves.chunks_exact(width);
    let low = numbers().filter(|number| number[0] > HIGH_HALF_MAX).count();
    numbers().all(is_small) && 2 * low >= numbers().count()
}

/// Whether each of a few numbers of `width` halves, at least two, is nonzero only in its lowest half.
fn take_turns(halves: &[u16], width: usize) -> bool {
    let is_low = |number: &[u16]| number[0] != 0 && number[1..].iter().all(|half| *half == 0);
    halves.len() >= 2 * width && halves.chunks_exact(width).all(is_low)
}

/// Scans two-byte numbers for a run of wide ones, which occurs in the middle of concatenated files.
#[derive(Debug, Default)]
pub(super) struct WideNumbers {
    seen: u64,
    last: u32,
    /// Runs of pairs that end at even and at odd places: a run may start at either.
    runs: [Run; 2],
}

/// Consecutive pairs that may be four-byte numbers or halves of eight-byte ones.
#[derive(Debug, Default)]
struct Run {
    pairs: u32,
    /// Pairs with a low half above 3.
    low: u32,
    /// Pairs with a zero high half, as most of a vocabulary has.
    plain: u32,
    /// Zero pairs at even and at odd places of the run.
    nothing: [u32; 2],
    /// The first distinct nonzero low halves.
    different: Vec<u32>,
}

impl WideNumbers {
    /// Scans more numbers.
    ///
    /// # Errors
    /// They complete a run of four-byte or eight-byte numbers.
    pub(super) fn see(&mut self, numbers: &[u32]) -> Result<(), String> {
        for &number in numbers {
            let run = &mut self.runs[(self.seen % 2) as usize];
            self.seen += 1;
            if self.seen > 1
                && let Some(width) = run.width_with(self.last, number)
            {
                let first = self.seen - 2 * u64::from(RUN_PAIRS);
                return Err(format!(
                    "a file with numbers of {width} from token {first} on, as it seems, and its name stands for two: write all of it in one width (`array.astype('<u4').tofile(...)` and format = \"tokens-u32\"), or say format = \"tokens-u16\" if all are of two"
                ));
            }
            self.last = number;
        }
        Ok(())
    }
}

impl Run {
    /// Adds a pair. Returns the width of the numbers, in words, once the run is long enough and looks wide.
    fn width_with(&mut self, low: u32, high: u32) -> Option<&'static str> {
        if high > u32::from(HIGH_HALF_MAX) {
            self.begin_anew();
            return None;
        }
        self.nothing[self.pairs as usize % 2] += u32::from((low, high) == (0, 0));
        self.pairs += 1;
        self.low += u32::from(low > u32::from(HIGH_HALF_MAX));
        self.plain += u32::from(high == 0);
        if low != 0 && self.different.len() < DIFFERENT_MIN && !self.different.contains(&low) {
            self.different.push(low);
        }
        if self.pairs < RUN_PAIRS {
            return None;
        }
        let width = self.width();
        self.begin_anew();
        width
    }

    fn width(&self) -> Option<&'static str> {
        let upper = self.nothing[0].max(self.nothing[1]);
        // The rest are the lower halves of eight-byte numbers.
        let (name, upper) =
            if upper >= UPPER_MIN { ("eight bytes (numpy's int64)", upper) } else { ("four bytes", 0) };
        let (half, plain) = ((self.pairs - upper) / 2, self.plain - upper);
        let is_wide = self.low >= half && plain >= half && self.different.len() == DIFFERENT_MIN;
        is_wide.then_some(name)
    }

    fn begin_anew(&mut self) {
        (self.pairs, self.low, self.plain, self.nothing) = (0, 0, 0, [0; 2]);
        self.different.clear();
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::content::HEAD_BYTES;
    use super::*;

    /// Returns random numbers below `vocabulary`, of `width` bytes each.
    fn numbers(vocabulary: u64, width: usize, count: usize, random: &mut ChaCha8Rng) -> Vec<u8> {
        (0..count).flat_map(|_| random.random_range(0..vocabulary).to_le_bytes()[..width].to_vec()).collect()
    }

    /// Reads them as two-byte numbers.
    fn halves(bytes: &[u8]) -> Vec<u32> {
        bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half).into()).collect()
    }

    #[test]
    fn numbers_of_eight_bytes_are_no_tokens_of_four() {
        let bytes =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let four =
            |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        for numbers in [&[1, 2, 3, 4][..], &[0, 70_000, 2, 128_255, 0, 9], &[3_000_000_000, 1, 1, 1]] {
            assert_eq!(check_four(&bytes(numbers)), Err(EIGHT_FOR_FOUR.to_owned()), "{numbers:?}");
        }
        for numbers in [&[1, 2, 3, 4, 5, 6, 7, 8][..], &[1, 0, 2, 0], &[0; 64], &[1, 0, 2, 0, 3, 0, 4, 1]] {
            assert_eq!(check_four(&four(numbers)), Ok(()), "{numbers:?}");
        }
    }

    #[test]
    fn numbers_whose_upper_halves_are_all_0_are_no_tokens_of_two_bytes_whatever_is_said() {
        let wide = |numbers: &[u32], zeros: usize| -> Vec<u32> {
            numbers
                .iter()
                .flat_map(|low| std::iter::once(*low).chain(std::iter::repeat_n(0, zeros)))
                .collect()
        };
        let long: Vec<u32> = (0..5000).map(|at| at * 7919 % 50_257).collect();
        for numbers in [&[1, 2, 3, 4][..], &[7, 0, 9, 8, 6], &[50_256, 3, 2, 50_256, 1], &long, &long[7..19]]
        {
            assert_eq!(check_said(&wide(numbers, 1)), Err(FOUR_SAID.to_owned()), "{numbers:?}");
            assert_eq!(check_said(&wide(numbers, 3)), Err(EIGHT_SAID.to_owned()), "{numbers:?}");
        }
        let mut last = wide(&long, 1);
        last[9999] = 1;
        for tokens in [
            &last[..],
            &[],
            &[1, 0, 2, 0, 3, 0],
            &[0; 4096],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0].repeat(99),
            &[1, 0, 2, 0, 3, 0].repeat(9),
            &long,
        ] {
            assert_eq!(check_said(tokens), Ok(()), "{:?}", &tokens[..tokens.len().min(16)]);
        }
    }

    #[test]
    fn tokens_of_another_width_than_a_name_says_are_refused() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut head = |vocabulary: u64, width: usize, bytes: usize| {
            numbers(vocabulary, width, bytes / width, &mut random)
        };
        for _ in 0..100 {
            for bytes in [0, 64, 200, HEAD_BYTES] {
                for vocabulary in [2, 4, 17, 256, 1000, 50_257, 1 << 16] {
                    check(&head(vocabulary, 2, bytes)).unwrap();
                }
            }
            for vocabulary in [64, 256, 50_257, 128_256, 1 << 18] {
                for (width, name) in
                    [(4, "a file with numbers of four bytes"), (8, "a file with numbers of eight")]
                {
                    for bytes in [128, 200, HEAD_BYTES] {
                        let message = check(&head(vocabulary, width, bytes)).unwrap_err();
                        assert!(message.starts_with(name), "{vocabulary}, {bytes} bytes: {message}");
                    }
                }
            }
        }
        // One token per byte of a text, padding, and numbers beyond every vocabulary.
        let text: Vec<u8> =
            b"it was the best of times\n".repeat(9).iter().flat_map(|byte| [*byte, 0]).collect();
        for head in [text, vec![0; HEAD_BYTES], vec![1; HEAD_BYTES], head(1 << 32, 4, HEAD_BYTES)] {
            check(&head).unwrap();
        }
    }

    #[test]
    fn a_few_numbers_of_another_width_are_refused_where_nothing_and_something_take_turns() {
        let bytes =
            |halves: &[u16]| -> Vec<u8> { halves.iter().flat_map(|half| half.to_le_bytes()).collect() };
        for count in 2..PAIRS_MIN as u16 {
            let four: Vec<u16> = (1..=count).flat_map(|low| [60_000 + low, 0]).collect();
            assert!(check(&bytes(&four)).unwrap_err().contains("format = \"tokens-u32\""), "{count}");
            let last = four.len() - 1;
            for other in [&[7][..], &four[..last], &[0, 7, 0, 7], &[7, 8, 9, 0]] {
                assert_eq!(check(&bytes(other)), Ok(()), "{other:?}");
            }
            let mut odd = four.clone();
            odd[last] = 1;
            assert_eq!(check(&bytes(&odd)), Ok(()), "{odd:?}");
            odd[last - 1..].fill(0);
            assert_eq!(check(&bytes(&odd)), Ok(()), "{odd:?}");
        }
        for count in 2..8 {
            let eight: Vec<u16> = (1..=count).flat_map(|low| [low, 0, 0, 0]).collect();
            assert!(check(&bytes(&eight)).unwrap_err().contains("numpy's int64"), "{count}");
        }
        // A single number may be anything; incomplete numbers are refused by the reader.
        for some in [&[5, 0, 0, 0][..], &[5, 0], &[5, 0, 0, 0, 5], &[5, 0, 0, 0, 5, 0, 0, 0, 5]] {
            assert_eq!(check(some), Ok(()), "{some:?}");
        }
    }

    #[test]
    fn wide_numbers_behind_some_of_two_bytes_are_found_wherever_they_begin_and_however_they_come() {
        let mut random = ChaCha8Rng::seed_from_u64(6);
        let four =
            [64_u64, 256, 50_257, 128_256, 1 << 18].map(|vocabulary| (4, vocabulary, "four bytes from"));
        let eight = [64_u64, 256, 50_257, 128_256]
            .map(|vocabulary| (8, vocabulary, "eight bytes (numpy's int64) from"));
        for (width, vocabulary, words) in four.into_iter().chain(eight) {
            for before in [0, 1, 255, 4096, 10_001] {
                let mut bytes = numbers(50_257, 2, before, &mut random);
                // Low numbers are frequent, as in texts.
                let mut number = || (0..3).map(|_| random.random_range(0..vocabulary)).min().unwrap_or(0);
                bytes.extend((0..2 * RUN_PAIRS).flat_map(|_| number().to_le_bytes()[..width].to_vec()));
                bytes.extend(numbers(50_257, 2, 77, &mut random));
                let all = halves(&bytes);
                for part in [1, 1000, all.len()] {
                    let mut wide = WideNumbers::default();
                    let message = all.chunks(part).try_for_each(|part| wide.see(part)).unwrap_err();
                    assert!(
                        message.starts_with(&format!("a file with numbers of {words} token ")),
                        "{message}"
                    );
                    let place = message.split_once("from token ").unwrap().1;
                    let place: usize = place.split_once(' ').unwrap().0.parse().unwrap();
                    // A few numbers before the run may look similar.
                    assert!((before.saturating_sub(8)..=before + 8).contains(&place), "{before}: {message}");
                }
            }
        }
    }

    #[test]
    fn tokens_of_two_bytes_have_no_such_run() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let count = 20 * RUN_PAIRS as usize;
        let mut streams: Vec<Vec<u32>> = [2, 4, 5, 17, 256, 1000, 50_257, 1 << 16]
            .map(|vocabulary| halves(&numbers(vocabulary, 2, count, &mut random)))
            .into();
        // Zeros, a separator after each letter of a small alphabet, a repeated phrase, and a blank other than token 0 between characters.
        streams.push(vec![0; count]);
        streams.push((0..count as u32).flat_map(|at| [4 + at % 4, 0]).collect());
        streams.push([9, 0, 700, 0, 8, 0].repeat(count));
        streams.push((0..count).flat_map(|_| [random.random_range(10..30), 1]).collect());
        // One pair short of a refused run, repeated.
        let run = RUN_PAIRS as usize - 1;
        streams.push(
            (0..20).flat_map(|_| (0..run as u32).flat_map(|at| [100 + at, 0]).chain([7, 7, 7])).collect(),
        );
        let eight = |at: u32| [100 + at, 0, 0, 0];
        streams.push((0..20).flat_map(|_| (0..run as u32 / 2).flat_map(eight).chain([7, 7, 7])).collect());
        for stream in streams {
            assert_eq!(WideNumbers::default().see(&stream), Ok(()), "{:?}", &stream[..20]);
        }
    }

    /// 512 eight-byte numbers are as long as 1,024 four-byte ones; a similar pair before them does not change the message.
    #[test]
    fn a_run_of_numbers_of_eight_bytes_is_told_from_one_of_four() {
        let eight = |at: u32| [100 + at, u32::from(at.is_multiple_of(3)), 0, 0];
        for before in [vec![], vec![9, 9], vec![9, 9, 9], vec![500, 1]] {
            let stream: Vec<u32> = before.into_iter().chain((0..RUN_PAIRS / 2).flat_map(eight)).collect();
            let message = WideNumbers::default().see(&stream).unwrap_err();
            assert!(message.contains("numbers of eight bytes (numpy's int64) from token "), "{message}");
        }
        // Four-byte numbers, many of them token 0.
        let four: Vec<u32> =
            (0..2 * RUN_PAIRS).flat_map(|at| [if at % 5 < 2 { 0 } else { 100 + at }, 0]).collect();
        let message = WideNumbers::default().see(&four).unwrap_err();
        assert!(message.contains("numbers of four bytes from token 0 on"), "{message}");
    }

    #[test]
    fn streams_that_take_turns_with_a_number_of_0_to_3_are_taken_for_numbers_of_four_bytes() {
        let mut random = ChaCha8Rng::seed_from_u64(8);
        let stream: Vec<u8> = (0..HEAD_BYTES / 4)
            .flat_map(|_| [random.random_range(4..60_000_u16), random.random_range(0..4)])
            .flat_map(u16::to_le_bytes)
            .collect();
        assert!(check(&stream).unwrap_err().contains("or \"tokens-u16\" if they are of two"));
    }
}
