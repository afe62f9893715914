//! Crockford's base 32, lower case: no similar letters, and a double click selects a whole text.

/// Bytes of whole characters: 5 bytes are 8 characters.
const GROUP_BYTES: usize = 5;
const GROUP_CHARACTERS: usize = 8;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Encodes whole groups of 5 bytes.
pub(super) fn encode<const N: usize>(bytes: &[u8; N]) -> String {
    const { assert!(N.is_multiple_of(GROUP_BYTES)) };
    let mut text = String::with_capacity(N / GROUP_BYTES * GROUP_CHARACTERS);
    for group in bytes.chunks_exact(GROUP_BYTES) {
        let word = group.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        text.extend(
            (0..GROUP_CHARACTERS).rev().map(|at| char::from(ALPHABET[(word >> (5 * at)) as usize & 31])),
        );
    }
    text
}

/// Decodes exactly `N` bytes, in upper or lower case. `None`: another length, or a character outside the
/// alphabet.
pub(super) fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    const { assert!(N.is_multiple_of(GROUP_BYTES)) };
    if text.len() != N / GROUP_BYTES * GROUP_CHARACTERS {
        return None;
    }
    let mut bytes = [0; N];
    for (group, characters) in
        bytes.chunks_exact_mut(GROUP_BYTES).zip(text.as_bytes().chunks_exact(GROUP_CHARACTERS))
    {
        let mut word = 0u64;
        for character in characters {
            let digit = ALPHABET.iter().position(|known| *known == character.to_ascii_lowercase())?;
            word = word << 5 | digit as u64;
        }
        group.copy_from_slice(&word.to_be_bytes()[8 - GROUP_BYTES..]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_texts_are_encoded() {
        assert_eq!(encode(&[0; 5]), "00000000");
        assert_eq!(encode(&[0xff; 5]), "zzzzzzzz");
        // 0x0123456789 = 00000 00100 10001 10100 01010 11001 11100 01001
        assert_eq!(encode(&[0x01, 0x23, 0x45, 0x67, 0x89]), "04hmasw9");
        assert_eq!(decode("04HMASW9"), Some([0x01, 0x23, 0x45, 0x67, 0x89]));
        assert_eq!(decode::<5>("04hmasw"), None);
        assert_eq!(decode::<5>("04hmasu9"), None);
        assert_eq!(decode::<5>("04hmasé"), None);
    }

    proptest! {
        #[test]
        fn bytes_survive_their_text_form(bytes: [u8; 10]) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
