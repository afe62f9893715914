//! Invalid UTF-8, with remedies.

use std::str::Utf8Error;

use super::input::{Packing, command};

/// Bytes on either side of the first invalid one that distinguish text from binary data.
const AROUND_BYTES: usize = 256;
/// Upper bound of control characters among them in a text, and one per this many bytes.
const CONTROLS_MAX: usize = 1;
const CONTROLS_ONE_IN: usize = 32;

/// The first byte of a text that is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUtf8 {
    /// Its offset, from 0.
    pub(super) offset: usize,
    pub(super) byte: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Binary data.
    Binary,
    /// UTF-8 that ends within a character.
    CutOff,
    /// UTF-8 with other bytes in it.
    Mixed,
    /// UTF-8 with characters in forms that it does not have: overlong, or as surrogates.
    Modified,
    /// Text in another encoding, with letters beyond ASCII among ASCII letters, as in Western European languages.
    Other,
    /// The same, with consecutive letters beyond ASCII.
    Foreign,
    /// The same, with letters in place of Windows-1252's signs and gaps.
    Elder,
}

impl NotUtf8 {
    /// Creates the error for bytes up to the end of a line or of the file. `has_characters`: the text before them has UTF-8 characters beyond ASCII.
    pub(super) fn new(bytes: &[u8], error: Utf8Error, has_characters: bool) -> Self {
        Self::of_part(bytes, error, has_characters, true)
    }

    /// The same for a part of a file; `is_last`: the file ends with it.
    pub(super) fn of_part(bytes: &[u8], error: Utf8Error, has_characters: bool, is_last: bool) -> Self {
        let offset = error.valid_up_to();
        let (mut characters, mut others) = (usize::from(has_characters), 0);
        for part in bytes.utf8_chunks() {
            characters += part.valid().chars().filter(|character| !character.is_ascii()).count();
            others += usize::from(!part.invalid().is_empty());
        }
        let is_mixed = has_characters || characters > others;
        let kind = match error.error_len() {
            _ if is_binary_around(bytes, offset) => Kind::Binary,
            _ if is_modified(&bytes[offset..]) => Kind::Modified,
            // It may be the last letter of a text in another encoding: a single byte, or any before the file's end.
            None if is_mixed || is_last && bytes.len() - offset > 1 => Kind::CutOff,
            _ if is_mixed => Kind::Mixed,
            _ if is_foreign(bytes) || is_shift_jis(bytes) => Kind::Foreign,
            _ if is_elder(bytes) => Kind::Elder,
            _ => Kind::Other,
        };
        Self { offset, byte: bytes.get(offset).copied().unwrap_or_default(), kind }
    }

    /// Describes its place in `what`.
    pub(super) fn within(&self, what: &str) -> String {
        format!("not UTF-8 at byte {} of {what} (0x{:02x})", self.offset, self.byte)
    }

    /// Returns the remedy for a file of this compression.
    pub(super) fn remedy(&self, packing: Option<Packing>) -> String {
        match self.kind {
            Kind::Foreign => format!(
                "it may be in an encoding of another script (GBK, Shift-JIS, EUC-KR, Big5, KOI8-R, Windows-1251): find out in which, and convert it from that one: {}",
                command(packing, "iconv -f ENCODING -t UTF-8", "OUT")
            ),
            Kind::Other => format!(
                "if it is in another encoding, convert it, and look at its letters afterwards: {} does so for what was written under Windows in Western Europe (MACINTOSH on an old Mac, CP850 under DOS, WINDOWS-1250 in Central Europe)",
                command(packing, "iconv -f WINDOWS-1252 -t UTF-8", "OUT")
            ),
            Kind::Elder => format!(
                "it may be in an encoding of an old Mac (MACINTOSH), of DOS (CP850, CP437) or of another script: find out in which, and convert it from that one: {}",
                command(packing, "iconv -f ENCODING -t UTF-8", "OUT")
            ),
            Kind::Mixed => format!(
                "other characters are UTF-8, so a part is damaged or in another encoding: mend that part, or drop such bytes with {}",
                command(packing, "iconv -c -f UTF-8 -t UTF-8", "OUT")
            ),
            Kind::Modified => "it is UTF-8 in a modified form (overlong, as Java writes NUL, or with surrogates, CESU-8), which no name of `iconv` stands for everywhere: write it anew as UTF-8 with the program that made it, or decode it in Python (`ftfy.bad_codecs` has `utf-8-variants`)".to_owned(),
            Kind::CutOff => "it ends within a character, as if it was cut off: get it anew".to_owned(),
            Kind::Binary => "the bytes around it are binary data and no text: take it out of the source, or name its own format".to_owned(),
        }
    }
}

/// Minimum of bytes beyond ASCII to judge a script.
const FOREIGN_BYTES_MIN: usize = 4;

/// Whether two of three bytes beyond ASCII are adjacent to another one: words of a non-Latin script, or two-byte characters.
fn is_foreign(bytes: &[u8]) -> bool {
    let beyond = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    let beside = bytes.windows(2).filter(|pair| pair.iter().all(|byte| !byte.is_ascii())).count();
    beyond >= FOREIGN_BYTES_MIN && 3 * beside >= 2 * beyond
}

/// Whether it begins with an overlong form of a character, or with half of a pair of surrogates.
fn is_modified(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xc0 | 0xc1, 0x80..=0xbf, ..]
            | [0xe0, 0x80..=0x9f, 0x80..=0xbf, ..]
            | [0xed, 0xa0..=0xbf, 0x80..=0xbf, ..]
            | [0xf0, 0x80..=0x8f, 0x80..=0xbf, 0x80..=0xbf, ..]
    )
}

/// Minimum of its characters of two bytes to judge.
const PAIRS_MIN: usize = 2;

/// Whether all bytes are Shift-JIS, with half of the characters of two bytes behind another one. Their second bytes may be ASCII letters.
fn is_shift_jis(bytes: &[u8]) -> bool {
    let (mut rest, mut pairs, mut in_row, mut is_behind) = (bytes, 0, 0, false);
    loop {
        let is_pair = match rest {
            [] => return pairs >= PAIRS_MIN && 2 * in_row >= pairs,
            [0x81..=0x9f | 0xe0..=0xfc, 0x40..=0x7e | 0x80..=0xfc, ..] => true,
            // The part may end within a character.
            [0x81..=0x9f | 0xe0..=0xfc] | [0..=0x7f | 0xa1..=0xdf, ..] => false,
            _ => return false,
        };
        pairs += usize::from(is_pair);
        in_row += usize::from(is_pair && is_behind);
        (is_behind, rest) = (is_pair, &rest[1 + usize::from(is_pair)..]);
    }
}

/// Whether most bytes from 0x80 to 0x9f are within words but are neither letters nor the apostrophe of Windows-1252, or any is undefined there.
fn is_elder(bytes: &[u8]) -> bool {
    const LETTERS: [u8; 8] = [0x8a, 0x8c, 0x8e, 0x92, 0x9a, 0x9c, 0x9e, 0x9f];
    const NOTHING: [u8; 5] = [0x81, 0x8d, 0x8f, 0x90, 0x9d];
    let is_low = |byte: u8| (0x80..=0x9f).contains(&byte);
    let is_letter = |byte: u8| byte.is_ascii_alphabetic();
    let within = bytes.windows(3).filter(|part| {
        is_low(part[1]) && !LETTERS.contains(&part[1]) && is_letter(part[0]) && is_letter(part[2])
    });
    let low = bytes.iter().filter(|byte| is_low(**byte)).count();
    bytes.iter().any(|byte| NOTHING.contains(byte)) || low > 0 && 2 * within.count() > low
}

/// Whether the bytes around a place have too many control characters for a text.
fn is_binary_around(bytes: &[u8], place: usize) -> bool {
    let around = &bytes[place.saturating_sub(AROUND_BYTES)..bytes.len().min(place + AROUND_BYTES)];
    let is_control = |byte: &&u8| matches!(byte, 0..=8 | 0x0e..=0x1a | 0x1c..=0x1f);
    let controls = around.iter().filter(is_control).count();
    controls > CONTROLS_MAX && controls * CONTROLS_ONE_IN > around.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8], has_characters: bool) -> NotUtf8 {
        NotUtf8::new(bytes, str::from_utf8(bytes).unwrap_err(), has_characters)
    }

    #[test]
    fn another_encoding_is_told_from_damage_cuts_and_binary_data() {
        let mut random: Vec<u8> = (0..=255).map(|byte: u8| byte.wrapping_mul(167)).collect();
        random.push(0xff);
        for (bytes, has_characters, offset, kind) in [
            (&b"caf\xe9 au lait"[..], false, 3, Kind::Other),
            (b"caf\xe9", false, 3, Kind::Other),
            (b"na\xefve caf\xe9 \x93quoted\x94", false, 2, Kind::Other),
            // Windows-1251 and Shift-JIS.
            (b"Gr\xfc\xdfe, gr\xfc\xdft", false, 2, Kind::Other),
            (b"\xef\xf0\xe8\xe2\xe5\xf2", false, 0, Kind::Foreign),
            (b"\x82\xb1\x82\xf1", false, 0, Kind::Foreign),
            // Shift-JIS with ASCII letters as second bytes, and apostrophes and quotes of Windows-1252.
            (b"\x83e\x83L\x83X\x83g", false, 0, Kind::Foreign),
            (b"ID 7: \x83f\x81[\x83^, ok\n", false, 6, Kind::Foreign),
            (b"it\x92s what they\x92ve said", false, 2, Kind::Other),
            (b"\x93Quoted\x94", false, 0, Kind::Other),
            // NUL of Java, an overlong slash, a pictograph in CESU-8.
            (b"a\xc0\x80b", false, 1, Kind::Modified),
            (b"a\xc0\xafb \xc3\xa9\xc3\xa9", true, 1, Kind::Modified),
            (b"smile \xed\xa0\xbd\xed\xb8\x80", false, 6, Kind::Modified),
            (b"\xc0 la carte, \xc0\xa0", false, 0, Kind::Other),
            // MacRoman, CP850, and letters that Windows-1252 has.
            (b"caf\x8e na\x95ve d\x8ej\x88", false, 3, Kind::Other),
            (b"na\x95ve pr\x8ef\x8erence, \x8ecole cr\x90e", false, 2, Kind::Elder),
            (b"pr\x82f\x82rence na\x8bve", false, 2, Kind::Elder),
            (b"it\x92s \x84so\x93 \x96 c\x9cur", false, 2, Kind::Other),
            (b"caf\xe9", true, 3, Kind::CutOff),
            (b"cut off \xe2\x82", false, 8, Kind::CutOff),
            ("één € é".as_bytes().split_last().unwrap().1, false, 10, Kind::CutOff),
            (b"\xc3\xa9\xc3\xa9 caf\xe9 \xc3\xa9", false, 8, Kind::Mixed),
            (b"plain \xff letters", true, 6, Kind::Mixed),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", false, 0, Kind::Binary),
            (b"\xff\0\x01\xfe", true, 0, Kind::Binary),
            (&random, false, 1, Kind::Binary),
            // A control character alone is no proof.
            (b"form\x01 feed and caf\xe9", false, 18, Kind::Other),
        ] {
            let found = found(bytes, has_characters);
            assert_eq!((found.offset, found.kind), (offset, kind), "{bytes:?}");
            assert_eq!(found.byte, bytes[offset]);
        }
    }

    /// With a character of GBK.
    #[test]
    fn a_part_of_a_character_is_a_cut_only_where_the_file_ends_or_others_are_utf8() {
        for (bytes, has_characters, is_last, kind) in [
            (&b"\xe4\xbd"[..], false, true, Kind::CutOff),
            (b"\xe4\xbd", false, false, Kind::Other),
            (b"\xe4\xbd", true, false, Kind::CutOff),
            (b"\xc3\xa9\xc3\xa9 \xe2\x82", false, false, Kind::CutOff),
            (b"caf\xe9", false, false, Kind::Other),
        ] {
            let error = str::from_utf8(bytes).unwrap_err();
            assert_eq!(NotUtf8::of_part(bytes, error, has_characters, is_last).kind, kind, "{bytes:?}");
        }
    }

    #[test]
    fn the_command_unpacks_what_is_packed_and_binary_data_is_not_converted() {
        let other = found(b"caf\xe9", false);
        assert_eq!(other.within("column 2"), "not UTF-8 at byte 3 of column 2 (0xe9)");
        assert!(other.remedy(None).contains("`iconv -f WINDOWS-1252 -t UTF-8 IN > OUT`"));
        let packed = other.remedy(Some(Packing::Gzip));
        assert!(packed.contains("`gzip -dc IN | iconv -f WINDOWS-1252 -t UTF-8 > OUT`"), "{packed}");
        for bytes in [&b"\xff\0\x01\xfe"[..], b"cut off \xe2\x82"] {
            assert!(!found(bytes, false).remedy(None).contains("iconv"), "{bytes:?}");
        }
    }
}
