//! Floating-point numbers where tokens are expected.

/// A format of IEEE 754.
struct Float {
    bytes: usize,
    /// Bits of the fraction.
    fraction: u32,
    /// The exponent of 1.
    bias: u64,
    /// Its name in numpy.
    name: &'static str,
    /// Minimum of numbers for a decision: so many tokens hardly look like this by chance.
    count_min: usize,
    remedy: &'static str,
}

const ANEW: &str = "write them as whole numbers (`array.astype('<u2').tofile(...)`, or '<u4' and format = \"tokens-u32\" beyond 65,535)";
const FLOATS: [Float; 3] = [
    Float { bytes: 8, fraction: 52, bias: 1023, name: "float64", count_min: 8, remedy: ANEW },
    Float { bytes: 4, fraction: 23, bias: 127, name: "float32", count_min: 16, remedy: ANEW },
    Float {
        bytes: 2,
        fraction: 10,
        bias: 15,
        name: "float16",
        count_min: 64,
        remedy: "make the tokens anew as whole numbers, since this format does not hold every one above 2,048",
    },
];
/// At least one in this many must be small enough to have a fraction: two-byte numbers from 1,024 on are always whole, and tokens of a text may all be such.
const TELLING_IN: usize = 32;
const TELLING_MIN: usize = 4;
/// Minimum of different numbers: a few repeated tokens may all look like this.
const DIFFERENT_MIN: usize = 4;

/// Refuses a file that begins with whole floating-point numbers, mostly not 0. As two-byte tokens, all would be above 15,359,
/// and few of those are whole numbers.
pub(super) fn check(head: &[u8]) -> Result<(), String> {
    match FLOATS.iter().find(|float| float.is_of(head)) {
        Some(Float { bytes, name, remedy, .. }) => Err(format!(
            "a file with floating-point numbers of {bytes} bytes, as it seems (numpy's {name}): {remedy}"
        )),
        None => Ok(()),
    }
}

impl Float {
    fn is_of(&self, head: &[u8]) -> bool {
        let numbers = || head.chunks_exact(self.bytes).map(number);
        let (count, zeros) = (numbers().len(), numbers().filter(|number| *number == 0).count());
        if count < self.count_min || 2 * zeros > count || !numbers().all(|number| self.is_whole(number)) {
            return false;
        }
        if numbers().filter(|number| self.is_telling(*number)).count() < (count / TELLING_IN).max(TELLING_MIN)
        {
            return false;
        }
        let mut different: Vec<u64> = Vec::new();
        for number in numbers().filter(|number| *number != 0) {
            if different.len() < DIFFERENT_MIN && !different.contains(&number) {
                different.push(number);
            }
        }
        different.len() == DIFFERENT_MIN
    }

    /// Whether numbers of this size may have a fraction.
    fn is_telling(&self, bits: u64) -> bool {
        bits != 0 && bits >> self.fraction < self.bias + u64::from(self.fraction)
    }

    /// Whether the bits are 0 or a whole number from 1 on within any vocabulary.
    fn is_whole(&self, bits: u64) -> bool {
        if bits == 0 {
            return true;
        }
        let infinite = (1 << (8 * self.bytes as u32 - 1 - self.fraction)) - 1;
        let (exponent, fraction) = (bits >> self.fraction, bits & ((1 << self.fraction) - 1));
        let Some(power) = exponent.checked_sub(self.bias).filter(|_| exponent < infinite) else {
            return false;
        };
        let behind_point = u64::from(self.fraction).saturating_sub(power);
        power < 32 && fraction & ((1 << behind_point) - 1) == 0
    }
}

/// Decodes up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::content::HEAD_BYTES;
    use super::*;

    /// Encodes a whole number in a format, rounded towards 0.
    fn bits(float: &Float, number: u64) -> Vec<u8> {
        let bits = match number {
            0 => 0,
            number => {
                let power = u64::from(number.ilog2());
                let fraction = (number << 1 << (62 - power)) << 1;
                (power + float.bias) << float.fraction | fraction >> (64 - float.fraction)
            }
        };
        bits.to_le_bytes()[..float.bytes].to_vec()
    }

    #[test]
    fn numbers_are_written_as_numpy_writes_them() {
        let [double, single, half] = &FLOATS;
        assert_eq!(bits(double, 50_256), 50_256_f64.to_le_bytes());
        assert_eq!(bits(single, 50_256), 50_256_f32.to_le_bytes());
        assert_eq!(bits(half, 3), 0x4200_u16.to_le_bytes());
    }

    #[test]
    fn floating_point_numbers_are_no_tokens_whatever_the_vocabulary() {
        let mut random = ChaCha8Rng::seed_from_u64(11);
        for float in &FLOATS {
            for vocabulary in [16_u64, 64, 256, 1000, 30_522, 32_000, 50_257, 65_000] {
                let few = if vocabulary < 8000 { float.count_min * float.bytes } else { HEAD_BYTES };
                for bytes in [few, HEAD_BYTES] {
                    // Low numbers are frequent, as in texts.
                    let mut token = || (0..3).map(|_| random.random_range(0..vocabulary)).min().unwrap_or(0);
                    let head: Vec<u8> = (0..bytes / float.bytes).flat_map(|_| bits(float, token())).collect();
                    let message = check(&head).unwrap_err();
                    assert!(message.contains(float.name), "{vocabulary}, {bytes} bytes: {message}");
                }
            }
        }
    }

    #[test]
    fn tokens_are_no_floating_point_numbers() {
        let mut random = ChaCha8Rng::seed_from_u64(12);
        for vocabulary in [2_u64, 256, 1000, 16_000, 30_522, 32_000, 50_257, 1 << 16, 100_000, 1 << 18] {
            for width in [2, 4].into_iter().filter(|width| vocabulary <= 1 << (8 * width)) {
                for _ in 0..200 {
                    let head: Vec<u8> = (0..HEAD_BYTES / width)
                        .flat_map(|_| random.random_range(0..vocabulary).to_le_bytes()[..width].to_vec())
                        .collect();
                    assert_eq!(check(&head), Ok(()), "{vocabulary}");
                }
            }
        }
        // Like Llama 2's Chinese characters: every such two-byte number is whole.
        let head: Vec<u8> =
            (0..256).flat_map(|_| random.random_range(29_871_u16..31_700).to_le_bytes()).collect();
        assert_eq!(check(&head), Ok(()));
        // One token, a few, and padding.
        let of =
            |tokens: &[u16]| tokens.iter().copied().cycle().take(256).flat_map(u16::to_le_bytes).collect();
        let heads: [Vec<u8>; 4] = [of(&[0]), of(&[15_360]), of(&[15_360, 16_384, 0]), of(&[0, 0, 0, 17_408])];
        for head in heads {
            assert_eq!(check(&head), Ok(()), "{:?}", &head[..16]);
        }
    }
}
