//! Conversion of numbers to the bytes that are hashed, stored and sent: little-endian, as in the memory of
//! all supported machines.
//!
//! In one place and not generic, because the compiler optimises this crate in development builds too.

use std::sync::Arc;

#[cfg(target_endian = "big")]
compile_error!("values are hashed, stored and sent as they are in memory, which has to be little-endian");

/// Returns the bytes of values, without a copy.
#[must_use]
pub fn of_f32(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Appends the values in some bytes. Ignores a partial last value.
pub fn extend_f32(values: &mut Vec<f32>, bytes: &[u8]) {
    values.extend(values_of(bytes));
}

/// Returns the values in some bytes. Ignores a partial last value.
#[must_use]
pub fn f32_of(bytes: &[u8]) -> Arc<[f32]> {
    values_of(bytes).collect()
}

fn values_of(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word))
}

/// Appends tokens of `token_bytes` bytes each, up to four.
///
/// # Panics
/// `token_bytes` is more than four.
pub fn extend_with_tokens(bytes: &mut Vec<u8>, tokens: &[u32], token_bytes: usize) {
    let start = bytes.len();
    bytes.resize(start + tokens.len() * token_bytes, 0);
    for (word, token) in bytes[start..].chunks_exact_mut(token_bytes.max(1)).zip(tokens) {
        word.copy_from_slice(&token.to_le_bytes()[..token_bytes]);
    }
}

/// Returns the tokens in some bytes, of `token_bytes` bytes each, one to four. Ignores a partial last token.
///
/// # Panics
/// `token_bytes` is not one to four.
#[must_use]
pub fn tokens(bytes: &[u8], token_bytes: usize) -> Vec<u32> {
    let word = |token: &[u8]| {
        let mut word = [0; 4];
        word[..token_bytes].copy_from_slice(token);
        u32::from_le_bytes(word)
    };
    bytes.chunks_exact(token_bytes).map(word).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_little_endian() {
        assert_eq!(of_f32(&[1.0, -2.5]), [0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x20, 0xc0]);
    }

    proptest! {
        #[test]
        fn values_come_back(values: Vec<f32>, before: Vec<f32>) {
            let mut found = before.clone();
            extend_f32(&mut found, of_f32(&values));
            let shared = f32_of(of_f32(&values));
            prop_assert_eq!(of_f32(&shared), of_f32(&values));
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&found), bits(&[before, values].concat()));
        }

        #[test]
        fn tokens_come_back(all: Vec<u32>, token_bytes in 1_usize..=4) {
            let fitting: Vec<u32> = all.iter().map(|token| token >> (8 * (4 - token_bytes))).collect();
            let mut bytes = vec![7; token_bytes];
            extend_with_tokens(&mut bytes, &fitting, token_bytes);
            prop_assert_eq!(bytes.len(), (1 + fitting.len()) * token_bytes);
            prop_assert_eq!(&tokens(&bytes[token_bytes..], token_bytes), &fitting);
        }
    }
}
