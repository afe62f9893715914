//! Values of a tensor as a file has them. Here, as the compiler optimises this crate in development builds too.

use std::ops::Range;

use half::{bf16, f16};

use crate::little_endian::of_f32;

/// Format of a file's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFormat {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl ValueFormat {
    /// Returns the bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Consecutive values, little-endian, at any address.
#[derive(Clone, Copy, Debug)]
pub struct StoredValues<'a> {
    format: ValueFormat,
    bytes: &'a [u8],
}

impl<'a> StoredValues<'a> {
    /// Takes bytes as values. Ignores a partial last value.
    #[must_use]
    pub const fn new(format: ValueFormat, bytes: &'a [u8]) -> Self {
        let (whole, _) = bytes.split_at(bytes.len() / format.bytes() * format.bytes());
        Self { format, bytes: whole }
    }

    /// Takes values of the host.
    #[must_use]
    pub fn of(values: &'a [f32]) -> Self {
        Self { format: ValueFormat::F32, bytes: of_f32(values) }
    }

    /// Returns their number.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.format.bytes()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether none is infinite or no number.
    #[must_use]
    pub fn are_finite(&self) -> bool {
        let has_ones = |bits: u32, exponent: u32| bits & exponent == exponent;
        let narrow = |exponent: u32| self.halves().map(move |bits| has_ones(bits.into(), exponent));
        match self.format {
            ValueFormat::F32 => none(
                self.bytes.as_chunks().0.iter().map(|word| has_ones(u32::from_le_bytes(*word), 0x7f80_0000)),
            ),
            ValueFormat::F16 => none(narrow(0x7c00)),
            ValueFormat::Bf16 => none(narrow(0x7f80)),
        }
    }

    /// Returns a stretch of the values.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn part(&self, place: Range<usize>) -> Self {
        let width = self.format.bytes();
        Self { format: self.format, bytes: &self.bytes[place.start * width..place.end * width] }
    }

    /// Writes the values in f32.
    ///
    /// # Panics
    /// `into` has another length.
    pub fn write_f32(&self, into: &mut [f32]) {
        assert_eq!(into.len(), self.len(), "values for as many places");
        match self.format {
            ValueFormat::F32 => {
                let words = self.bytes.as_chunks().0.iter();
                into.iter_mut().zip(words).for_each(|(into, word)| *into = f32::from_le_bytes(*word));
            }
            ValueFormat::F16 => {
                into.iter_mut()
                    .zip(self.halves())
                    .for_each(|(into, bits)| *into = f16::from_bits(bits).to_f32());
            }
            ValueFormat::Bf16 => {
                into.iter_mut()
                    .zip(self.halves())
                    .for_each(|(into, bits)| *into = bf16::from_bits(bits).to_f32());
            }
        }
    }

    /// Returns the values' bytes in bf16, each rounded to the nearest, in `room` unless they are in it already.
    #[must_use]
    pub fn bf16_bytes<'b>(&self, room: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        let narrow = |value: f32| bf16::from_f32(value).to_le_bytes();
        room.clear();
        match self.format {
            ValueFormat::Bf16 => return self.bytes,
            ValueFormat::F16 => {
                room.extend(self.halves().flat_map(|bits| narrow(f16::from_bits(bits).to_f32())))
            }
            ValueFormat::F32 => {
                room.extend(
                    self.bytes.as_chunks().0.iter().flat_map(|word| narrow(f32::from_le_bytes(*word))),
                );
            }
        }
        room
    }

    /// Returns values of two bytes.
    fn halves(&self) -> impl Iterator<Item = u16> + use<'a> {
        self.bytes.as_chunks().0.iter().map(|half| u16::from_le_bytes(*half))
    }
}

/// Whether none is set. Looks at all, as vector instructions do.
fn none(flags: impl Iterator<Item = bool>) -> bool {
    !flags.fold(false, |any, flag| any | flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ValueFormat; 3] = [ValueFormat::F32, ValueFormat::F16, ValueFormat::Bf16];

    fn f32_of(values: StoredValues<'_>) -> Vec<f32> {
        let mut all = vec![0.0; values.len()];
        values.write_f32(&mut all);
        all
    }

    /// −2.5, 0.1 and the largest: bits by `struct.pack("<e", …)` of Python, and the upper halves of `struct.pack("<f", …)`.
    #[test]
    fn values_of_each_format_are_read_at_any_address() {
        let cases = [
            (ValueFormat::F32, "0000000020c0cdcccc3dffff7f7f", [-2.5, 0.1, f32::MAX]),
            (ValueFormat::F16, "0000c1662eff7b", [-2.5, 0.099_975_586, 65_504.0]),
            (ValueFormat::Bf16, "0020c0cd3d7f7f", [-2.5, 0.100_097_656, 3.389_531_4e38]),
        ];
        for (format, hex, expected) in cases {
            let mut bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            let odd = bytes.len() - 3 * format.bytes();
            // A partial value follows.
            bytes.push(1);
            let values = StoredValues::new(format, &bytes[odd..]);
            assert_eq!((f32_of(values), values.len()), (expected.to_vec(), 3), "{format:?}");
            assert_eq!(f32_of(values.part(1..2)), [expected[1]]);
            assert!(values.are_finite());
        }
    }

    #[test]
    fn one_value_that_is_no_finite_number_is_found() {
        for format in ALL {
            for special in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let bytes: Vec<u8> = [1.0, special, 65_504.0, 0.0]
                    .into_iter()
                    .flat_map(|value| match format {
                        ValueFormat::F32 => value.to_le_bytes().to_vec(),
                        ValueFormat::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                        ValueFormat::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                    })
                    .collect();
                let values = StoredValues::new(format, &bytes);
                assert!(!values.are_finite() && values.part(2..4).are_finite(), "{format:?} {special}");
            }
        }
    }

    #[test]
    fn bf16_is_kept_and_others_are_rounded_to_the_nearest() {
        let mut room = Vec::new();
        let kept = [0x01, 0x80, 0xcd, 0x3d];
        assert_eq!(StoredValues::new(ValueFormat::Bf16, &kept).bf16_bytes(&mut room), kept);
        // Halfway between two: the even one; and just above it.
        let values = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.003_906_4];
        assert_eq!(StoredValues::of(&values).bf16_bytes(&mut room), [0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f]);
        let half = f16::from_f32(0.1).to_le_bytes();
        assert_eq!(StoredValues::new(ValueFormat::F16, &half).bf16_bytes(&mut room), [0xcd, 0x3d]);
    }
}
