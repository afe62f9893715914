//! Content absent from valid texts: zeros of an incompletely written file, and letters of UTF-16 or a seven-bit encoding, which are also valid UTF-8.

/// Consecutive zeros that rule out text.
const ZEROS: [u8; 16] = [0; 16];
const ZEROS_TOLD: &str = "it has zeros in a row, as in an incomplete download: fetch it again";

/// Fewest zeros that tell UTF-16: those of its blanks, among letters below U+0780.
const UTF_16_ZEROS_MIN: usize = 8;
const UTF_16: &str = "text in UTF-16 without a byte order mark, as all zeros are at every other byte: convert it (`iconv -f UTF-16LE -t UTF-8 IN > OUT`, or UTF-16BE)";

/// Message for ISO 2022, found by its shifts to two-byte characters.
const ISO_2022: &str = "text in ISO-2022, an encoding of seven bits: convert it, for Japanese with `iconv -f ISO-2022-JP -t UTF-8 IN > OUT`";
const HZ: &str = "text in HZ, an encoding of seven bits for Chinese: convert it (`iconv -f HZ -t UTF-8 IN > OUT`), or say format = \"text\" if it is UTF-8 all the same";
const UTF_7: &str = "text in UTF-7: convert it (`iconv -f UTF-7 -t UTF-8 IN > OUT`), or say format = \"text\" if it is UTF-8 all the same";

/// Minimum of letters in such an encoding: a few signs may look like one.
const SHIFTS_MIN: usize = 4;

/// Returns the place of such content, and the reason.
pub(super) fn found_in(text: &str) -> Option<(usize, &'static str)> {
    let bytes = text.as_bytes();
    if let Some(at) = memchr::memmem::find(bytes, &ZEROS) {
        return Some((at, ZEROS_TOLD));
    }
    if let Some(at) = utf_16(bytes) {
        return Some((at, UTF_16));
    }
    memchr::memchr_iter(0x1b, bytes).find(|&at| is_shift(&bytes[at + 1..])).map(|at| (at, ISO_2022))
}

/// Returns the first zero of a text whose zeros are all at odd or all at even places, if there are enough, and nearly all bytes there are those of the first 32 rows
/// of Unicode, which are control characters in UTF-8.
fn utf_16(bytes: &[u8]) -> Option<usize> {
    let mut zeros = memchr::memchr_iter(0, bytes);
    let first = zeros.next()?;
    let alike = zeros.try_fold(1, |count, at| (at % 2 == first % 2).then_some(count + 1))?;
    let high = || bytes.iter().skip(first % 2).step_by(2);
    let rows = high().filter(|byte| **byte < 32).count();
    (alike >= UTF_16_ZEROS_MIN && 8 * rows >= 7 * high().count()).then_some(first)
}

/// Returns a record's text, or refuses such content.
pub(super) fn checked<E: From<String>>(text: String) -> Result<String, E> {
    match found_in(&text) {
        Some((_, reason)) => Err(format!("its text cannot be one: {reason}").into()),
        None => Ok(text),
    }
}

/// Whether a shift follows the escape: `$B`, `$@`, `$A`, `$(D`, `$)C`.
fn is_shift(bytes: &[u8]) -> bool {
    matches!(bytes, [b'$', b'@' | b'A' | b'B', ..] | [b'$', b'(' | b')' | b'*' | b'+', b'@'..=b'Z', ..])
}

/// Returns the message for a text that is probably in a seven-bit encoding; `None`: it is not, as any with bytes beyond ASCII.
pub(super) fn seven_bits(text: &str) -> Option<&'static str> {
    if !text.is_ascii() {
        return None;
    }
    if is_hz(text) {
        return Some(HZ);
    }
    is_utf_7(text).then_some(UTF_7)
}

/// RFC 1843: each `~` precedes `{`, `}`, `~` or a line end; `~{` and `~}` enclose pairs of bytes.
fn is_hz(text: &str) -> bool {
    let (mut shifts, mut rest) = (0, text);
    while let Some((_, behind)) = rest.split_once('~') {
        rest = match behind.as_bytes() {
            [b'{', ..] => {
                let Some((within, behind)) = behind[1..].split_once("~}") else { return false };
                let are_pairs =
                    within.len().is_multiple_of(2) && within.bytes().all(|byte| byte.is_ascii_graphic());
                if !are_pairs || within.is_empty() {
                    return false;
                }
                shifts += 1;
                behind
            }
            [b'~' | b'\n', ..] => &behind[1..],
            _ => return false,
        };
    }
    shifts >= SHIFTS_MIN
}

/// RFC 2152: each `+` begins letters beyond ASCII in base64, or is `+-`.
fn is_utf_7(text: &str) -> bool {
    let (mut shifts, mut rest) = (0, text);
    while let Some((_, behind)) = rest.split_once('+') {
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        let (within, after) = behind.split_at(behind.bytes().take_while(|byte| is_base64(*byte)).count());
        if within.is_empty() {
            if !after.starts_with('-') {
                return false;
            }
        } else if is_beyond_ascii(within) {
            shifts += 1;
        } else {
            return false;
        }
        rest = after;
    }
    shifts >= SHIFTS_MIN
}

/// Whether unpadded base64 is UTF-16 of letters, some beyond ASCII, followed by zero bits.
fn is_beyond_ascii(base64: &str) -> bool {
    let (mut units, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in base64.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 16 {
            count -= 16;
            units.push((bits >> count) as u16);
            bits &= (1 << count) - 1;
        }
    }
    let letters: Result<Vec<char>, _> = char::decode_utf16(units).collect();
    count < 6 && bits == 0 && letters.is_ok_and(|letters| letters.iter().any(|letter| !letter.is_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_shifts_of_iso_2022_are_in_no_text() {
        for (text, at) in [
            ("one\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0two", 3),
            (
                "\x16\x045\x04=\x040\x04 \0C\x047\x04 \0=\x040\x04 \0;\x040\x04\n\0a\x04 \0b\x04 \0c\x04 \0d\x04 \0",
                9,
            ),
            ("\0a\0b\0c\0d\0e\0f\0g\0h", 0),
            ("\x1b$B$3$s\x1b(B", 0),
            ("a \x1b$(D\"/\x1b(B", 2),
            ("\x1b$)C\x0e0!\x0f", 0),
        ] {
            assert_eq!(found_in(text).map(|(at, _)| at), Some(at), "{text:?}");
        }
        for text in [
            "",
            "one\0two",
            "a\0b\0c\0d\0e\0f\0g\0",
            "abc\0abc\0abc\0abc\0abc\0abc\0abc\0abc\0",
            "one\0two\0three\0four\0five\0six\0seven\0eight\0nine\0",
            "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            "\x1b[31mred\x1b[0m",
            "\x1b(B",
            "price \x1b",
            "$B",
        ] {
            assert_eq!(found_in(text), None, "{text:?}");
        }
    }

    /// In the form of Python's codecs.
    #[test]
    fn encodings_of_seven_bits_are_told_from_signs() {
        for (text, words) in [
            ("~{J1<d~}, ~{:\\:C~} ~{Dc~}\na ~~ b ~{J1<d~}", Some("text in HZ")),
            ("+ZeVnLIqeMAEwbmWHeuAwZzBZ +AOk-t+AOk-, a +- b +ZeVnLIqe-", Some("text in UTF-7")),
            ("Hi Mom -+Jjo--! +AOk +AOk- +AOk-", Some("text in UTF-7")),
            ("~{a", None),
            ("/home/~user ~ ~~ ~{ab~}", None),
            ("~{ab~} ~{cd~} ~{ef~}", None),
            ("a+b-c +foo- +bar- +baz- +qux- 1+1", None),
            ("c++ is +AOk- +AOk- +AOk- +AOk-", None),
            ("+1 +1 +1 +1 +1", None),
            ("+AOk- +AOk- +AOk- +AOk- é", None),
        ] {
            let told = seven_bits(text);
            assert_eq!(told.is_some(), words.is_some(), "{text:?}");
            assert!(told.unwrap_or_default().starts_with(words.unwrap_or_default()), "{text:?}");
        }
    }
}
