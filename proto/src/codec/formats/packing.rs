//! Codes of whole bytes, and of less than a byte, low bits first.

use multiversion::multiversion;

/// Values packed at a time.
const PACKED_VALUES: usize = 128;

/// Appends `BYTES` for each value. `code` receives the index and the value.
#[multiversion(targets = "simd")]
pub(super) fn append<const BYTES: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    code: impl Fn(usize, f32) -> [u8; BYTES],
) {
    let start = out.len();
    out.resize(start + values.len() * BYTES, 0);
    let (codes, _) = out[start..].as_chunks_mut::<BYTES>();
    for (index, (bytes, &value)) in codes.iter_mut().zip(values).enumerate() {
        *bytes = code(index, value);
    }
}

/// Reads `BYTES` for each value.
#[multiversion(targets = "simd")]
pub(super) fn read<const BYTES: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; BYTES]) -> f32) {
    let codes = bytes.as_chunks::<BYTES>().0;
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = value(code);
    }
}

/// Appends codes of 8 / `PER_BYTE` bits, the low bits of a byte first. Higher bits of `code` are dropped.
#[multiversion(targets = "simd")]
pub(super) fn append_packed<const PER_BYTE: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    code: impl Fn(usize, f32) -> u8,
) {
    let bits = 8 / PER_BYTE;
    let byte = |codes: &[u8; PER_BYTE]| {
        let place = |(i, code): (usize, &u8)| (code & ((1 << bits) - 1)) << (i * bits);
        codes.iter().enumerate().map(place).fold(0, |byte, placed| byte | placed)
    };
    // Codes first, then bytes: both loops vectorise.
    for (chunk, values) in values.chunks(PACKED_VALUES).enumerate() {
        let mut codes = [0; PACKED_VALUES];
        for (index, (slot, &value)) in codes.iter_mut().zip(values).enumerate() {
            *slot = code(chunk * PACKED_VALUES + index, value);
        }
        out.extend(codes[..values.len().next_multiple_of(PER_BYTE)].as_chunks().0.iter().map(byte));
    }
}

/// Reads codes of 8 / `PER_BYTE` bits as their levels. Gathers of vector units are slower than these loads.
pub(super) fn read_packed<const PER_BYTE: usize>(bytes: &[u8], out: &mut [f32], levels: &[f32; 16]) {
    let bits = 8 / PER_BYTE;
    let level = |byte: u8, i: usize| levels[usize::from(byte >> (i * bits)) & ((1 << bits) - 1)];
    let (whole, tail) = out.as_chunks_mut::<PER_BYTE>();
    for (values, &byte) in whole.iter_mut().zip(bytes) {
        *values = std::array::from_fn(|i| level(byte, i));
    }
    if let Some(&byte) = bytes.get(whole.len()) {
        tail.iter_mut().enumerate().for_each(|(i, value)| *value = level(byte, i));
    }
}

/// Returns the table of levels of a format with fewer than four bits.
pub(super) fn few_levels<const COUNT: usize>(levels: [f32; COUNT]) -> [f32; 16] {
    std::array::from_fn(|code| levels[code % COUNT])
}

/// Whether `bits` of every `BYTES` are below the limit.
pub(super) fn all_below<const BYTES: usize, T: PartialOrd + Copy>(
    bytes: &[u8],
    bits: impl Fn([u8; BYTES]) -> T,
    limit: T,
) -> bool {
    bytes.as_chunks::<BYTES>().0.iter().fold(true, |all, &code| all & (bits(code) < limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<const PER_BYTE: usize>(codes: &[f32]) -> Vec<u8> {
        let levels = std::array::from_fn(|code| code as f32);
        let (mut bytes, mut read) = (Vec::new(), vec![-1.0; codes.len()]);
        append_packed::<PER_BYTE>(codes, &mut bytes, |_, code| code as u8);
        read_packed::<PER_BYTE>(&bytes, &mut read, &levels);
        assert_eq!(read, codes);
        bytes
    }

    #[test]
    fn packed_codes_come_back_and_the_last_byte_is_filled_with_zeros() {
        assert_eq!(round_trip::<2>(&[1.0, 15.0, 2.0]), [0xf1, 0x02]);
        assert_eq!(round_trip::<4>(&[1.0, 0.0, 2.0, 3.0, 3.0]), [0b1110_0001, 0b11]);
        assert_eq!(round_trip::<8>(&[1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]), [0b1000_1101, 1]);
        let long: Vec<f32> = (0..777_u16).map(|i| f32::from(i * 7 % 4)).collect();
        assert_eq!(round_trip::<4>(&long).len(), 195);
    }
}
