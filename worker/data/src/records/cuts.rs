//! Where a long text may be cut without changing its tokens.

use crate::{DataError, Tokenizer};

/// Bytes on either side of a cut that the tokenizer is asked about: more than a word or a run of white space usually has.
pub(crate) const AROUND_BYTES: usize = 2048;
/// Line ends that are tried, from the last one on, and then changes between letters, white space and the rest.
const LINES_TRIED: usize = 64;
const CHANGES_TRIED: usize = 192;

/// The cuts of one text.
pub(super) struct Cuts {
    tokenizer: Tokenizer,
    around_bytes: usize,
}

impl Cuts {
    /// Those for a tokenizer; none where every cut is as good as another.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        Self::around(tokenizer, AROUND_BYTES)
    }

    fn around(tokenizer: &Tokenizer, around_bytes: usize) -> Option<Self> {
        let tokenizer = tokenizer.clone();
        (!matches!(tokenizer, Tokenizer::Bytes)).then_some(Self { tokenizer, around_bytes })
    }

    /// The last bytes of a chunk, which the tokens of the next one depend on.
    pub(super) fn context<'t>(&self, chunk: &'t str) -> &'t str {
        &chunk[chunk.floor_char_boundary(chunk.len().saturating_sub(self.around_bytes))..]
    }

    /// The last place of a text at which it can be cut: what stands behind adds tokens to those before, and changes none of them. None: there is none among
    /// those that were tried.
    ///
    /// # Errors
    /// What the tokenizer refuses, in its words.
    pub(super) fn last(&self, text: &str) -> Result<Option<usize>, String> {
        // So much has to stand behind it.
        let end = text.floor_char_boundary(text.len().saturating_sub(self.around_bytes));
        let lines = text[..end].rmatch_indices('\n').map(|(at, _)| at + 1).take(LINES_TRIED);
        let changes = changes(&text[..end]).take(CHANGES_TRIED);
        for at in lines.chain(changes) {
            if self.is_one(text, at)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn is_one(&self, text: &str, at: usize) -> Result<bool, String> {
        let before = self.context(&text[..at]);
        let after = &text[..text.ceil_char_boundary((at + self.around_bytes).min(text.len()))];
        let around = &after[at - before.len()..];
        let tokens = self.tokenizer.encode(before)?;
        Ok(self.tokenizer.encode(around)?.starts_with(&tokens))
    }
}

/// Why a text is not cut at all.
pub(super) fn nowhere(path: &std::path::Path, offset: u64, bytes: usize) -> DataError {
    DataError::Malformed {
        path: path.to_owned(),
        format: "text",
        place: format!("byte {offset}"),
        reason: format!(
            "the tokenizer takes {} and more for one word, and so much is not tokenised at a time: break it into lines, or leave it out",
            indicatif::BinaryBytes(bytes as u64)
        ),
    }
}

/// Places between characters of different kinds, from the last one on.
fn changes(text: &str) -> impl Iterator<Item = usize> {
    let kind = |character: char| (character.is_alphanumeric(), character.is_whitespace());
    let behind = text.char_indices().rev();
    let before = text.chars().rev().skip(1);
    behind.zip(before).filter(move |((_, next), last)| kind(*next) != kind(*last)).map(|((at, _), _)| at)
}

#[cfg(test)]
#[cfg(feature = "tokenizers")]
mod tests {
    use std::path::Path;

    use longhaul_common::config::DataFormat;
    use serde_json::Value;

    use super::super::input::Input;
    use super::super::text::TextChunks;
    use super::super::{Record, Records};
    use super::*;
    use crate::Recipe;

    /// One of each class: see `make_tokenizers.py`.
    fn tokenizers() -> Vec<(String, Tokenizer, String)> {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers.json");
        let all: Vec<Value> = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
        let made = all.into_iter().map(|made| {
            let json = serde_json::to_vec(&made["tokenizer"]).unwrap();
            let texts = made["texts"].as_array().unwrap().iter().filter_map(Value::as_str);
            let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
            (made["name"].to_string(), tokenizer, texts.collect::<Vec<_>>().join("\n  \n\t"))
        });
        made.collect()
    }

    /// Its chunks of so many bytes.
    fn chunks(text: &str, tokenizer: &Tokenizer, bytes: usize) -> Vec<Record> {
        let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap();
        let input = input.checked(&Recipe::plain(DataFormat::Text)).unwrap();
        let mut chunks = TextChunks::with_cuts(input, bytes, Cuts::around(tokenizer, 200));
        std::iter::from_fn(|| chunks.next_record().transpose()).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn tokens_of_a_text_that_is_cut_are_those_of_the_whole() {
        for (name, tokenizer, text) in tokenizers() {
            // Of lines, and of one.
            for text in [text.repeat(9), text.repeat(9).replace('\n', " ")] {
                let whole = tokenizer.encode(&text).unwrap();
                for bytes in [600, 701, 1024] {
                    let chunks = chunks(&text, &tokenizer, bytes);
                    assert!(chunks.len() > 4, "{name}: {} chunks", chunks.len());
                    let parts = chunks.iter().map(|chunk| {
                        let (before, text) = chunk.as_text().unwrap();
                        tokenizer.encode_behind(before, text).unwrap()
                    });
                    assert_eq!(parts.collect::<Vec<_>>().concat(), whole, "{name}, {bytes}: {text:?}");
                }
            }
        }
    }

    /// Each of these is one word to a tokenizer of bytes.
    #[test]
    fn a_word_without_an_end_makes_a_chunk_larger_and_no_cut_goes_through_it() {
        let (_, tokenizer, _) = tokenizers().swap_remove(0);
        let word = "abcdefg".repeat(1000);
        let text = format!("one two {word} three {word}");
        let whole = tokenizer.encode(&text).unwrap();
        let chunks = chunks(&text, &tokenizer, 600);
        assert!(chunks.len() > 1);
        let parts = chunks.iter().map(|chunk| {
            let (before, text) = chunk.as_text().unwrap();
            tokenizer.encode_behind(before, text).unwrap()
        });
        assert_eq!(parts.collect::<Vec<_>>().concat(), whole);
    }

    #[test]
    fn places_between_kinds_of_characters_are_found_from_the_last_one_on() {
        assert_eq!(changes("ab c, é1\n").collect::<Vec<_>>(), [9, 6, 5, 4, 3, 2]);
        assert_eq!(changes("a").count(), 0);
        assert_eq!(changes("").count(), 0);
    }
}
