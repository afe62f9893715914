//! Detection of other content in a file that only its name declares to be tokens.

use super::content::is_safetensors;
use super::kinds::{TF_RECORDS, is_tf_records};

/// Minimum of bytes that distinguish text from tokens: twelve tokens form such a text by chance once in ten million times.
const TEXT_BYTES_MIN: usize = 24;
/// Bytes at the end of the examined part that may be an incomplete character.
const CUT_BYTES_MAX: usize = 3;

/// Magics of files that may have an extension of tokens, beyond those of [`super::kinds`].
const MARKS: [(&[u8], &str); 3] = [
    (b"\xba\x16\x4f\x2f", "a model of fastText: that is a model and no data"),
    (b"lmgg", "a GGML model: that is a model and no data"),
    (b"tjgg", "a GGML model: that is a model and no data"),
];

const LITDATA: &str = "a chunk of litdata: write its tokens with `numpy.concatenate(list(litdata.StreamingDataset(DIR))).astype('<u4').tofile(OUT)` and say format = \"tokens-u32\" of that file";
/// Minimum of items in such a chunk: tokens of a text may begin with 1 and 12 by chance.
const ITEMS_MIN: u32 = 3;

const OR_TOKENS: &str = "or say format = \"tokens-u16\" if these are tokens all the same";

/// Returns the message for a file, with the override.
pub(super) fn or_tokens(told: String) -> String {
    if told.contains("format = \"tokens-u16\"") { told } else { format!("{told}, {OR_TOKENS}") }
}

/// Refuses the start of another format or of a text where two-byte numbers are expected. Any bytes may be numbers: each of these occurs at the start of
/// tokens less than once in a million times.
pub(super) fn check(head: &[u8]) -> Result<(), String> {
    check_marked(head).map_err(or_tokens)?;
    match () {
        () if is_litdata(head, 1) => Err(or_tokens(LITDATA.to_owned())),
        () if is_jpeg(head) => Err(format!("a JPEG image: take it out of the source, {OR_TOKENS}")),
        () if is_text(head) => Err(format!(
            "text, as it seems, and its name stands for tokens: say format = \"text\" (or \"jsonl\", \"csv\") to have it tokenised, {OR_TOKENS}"
        )),
        () => Ok(()),
    }
}

/// The same for content with a magic, which is refused for any configured format.
pub(super) fn check_marked(head: &[u8]) -> Result<(), String> {
    let mark = MARKS.iter().find(|(begins, _)| head.starts_with(begins));
    match mark {
        Some((_, name)) => Err((*name).to_owned()),
        None if is_safetensors(head) => Err("a model's safetensors: that is a model and no data".to_owned()),
        None if is_litdata(head, ITEMS_MIN) => Err(LITDATA.to_owned()),
        None if is_tf_records(head) => Err(TF_RECORDS.to_owned()),
        None => Ok(()),
    }
}

/// Checks the number of items and their offsets: the first after these numbers, the others not decreasing.
fn is_litdata(head: &[u8], items_min: u32) -> bool {
    let mut words = head.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    let (Some(items), Some(first)) = (words.next(), words.next()) else { return false };
    let is_first = Some(first) == items.checked_add(2).and_then(|places| places.checked_mul(4));
    // A single offset may match by chance.
    let places: Vec<u32> = words.take(items as usize).collect();
    items >= items_min && is_first && !places.is_empty() && std::iter::once(&first).chain(&places).is_sorted()
}

/// Checks a magic of three bytes, and the next segment's marker.
fn is_jpeg(head: &[u8]) -> bool {
    matches!(head, [0xff, 0xd8, 0xff, 0xc0..=0xfe, ..])
}

/// Whether the examined part is long enough and consists of UTF-8 without control characters.
fn is_text(head: &[u8]) -> bool {
    let text = match str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() && head.len() - error.valid_up_to() <= CUT_BYTES_MAX => {
            str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_printable = |character: char| !character.is_control() || matches!(character, '\t' | '\n' | '\r');
    text.len() >= TEXT_BYTES_MIN && text.chars().all(is_printable)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::content::HEAD_BYTES;
    use super::*;

    #[test]
    fn text_and_what_is_marked_is_refused_with_a_way_out() {
        let safetensors = [&100_u64.to_le_bytes()[..], b"{\"a\":{\"dtype\":\"F32\""].concat();
        let cut = "it was the best of times, it was the w\u{f6}".as_bytes();
        for (head, name) in [
            (&b"It was the best of times\r\n\tit was"[..], "text, as it seems"),
            (
                "\u{feff}\u{6700}\u{597d}\u{7684}\u{65f6}\u{4ee3}\u{6700}\u{597d}\u{7684}".as_bytes(),
                "text, as it seems",
            ),
            (&cut[..cut.len() - 1], "text, as it seems"),
            (b"{\"text\": \"one two three\"}\n", "text, as it seems"),
            (&safetensors, "a model's safetensors"),
            (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "a JPEG image"),
            (b"\x03\0\0\0\x14\0\0\0\x80\0\0\0", "a chunk of litdata"),
            (b"\x01\0\0\0\x0c\0\0\0\x20\0\0\0\x05\0", "a chunk of litdata"),
            (b"\xba\x16\x4f\x2f\x0c\0\0\0", "a model of fastText"),
        ] {
            let message = check(head).unwrap_err();
            assert!(message.starts_with(name) && message.contains("format = \"tokens-u16\""), "{message}");
        }
    }

    #[test]
    fn places_that_go_back_are_no_chunk_of_litdata() {
        for head in [&[3, 20, 128, 64][..], &[1, 12, 5], &[3, 20], &[0, 8, 9], &[3, 24, 128], &[1, 12, 900]] {
            let head: Vec<u8> = head.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            assert_eq!(check_marked(&head), Ok(()), "{head:?}");
        }
    }

    #[test]
    fn tokens_of_each_vocabulary_are_taken_and_so_are_a_few_letters() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        for vocabulary in [2, 256, 1000, 30_522, 32_000, 50_257, 1 << 16] {
            for _ in 0..1000 {
                let tokens: Vec<u8> = (0..HEAD_BYTES / 2)
                    .flat_map(|_| (random.random_range(0..vocabulary) as u16).to_le_bytes())
                    .collect();
                for bytes in [0, 2, TEXT_BYTES_MIN, 64, HEAD_BYTES] {
                    assert_eq!(check(&tokens[..bytes]), Ok(()), "{vocabulary}: {:?}", &tokens[..bytes]);
                }
            }
        }
        for head in [
            &b"a few letters"[..],
            b"letters of a text, and then\0",
            b"\xff\xd8\xff\x01\0\0",
            &[b'a', 0].repeat(99),
        ] {
            assert_eq!(check(head), Ok(()), "{head:?}");
        }
    }
}
