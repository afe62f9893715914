//! Cuts of a long text that do not change its tokens.

use crate::bounds::AROUND_BYTES;
use crate::{DataError, Tokenizer};

/// Line ends to try, last one first, before changes between letters, white space and the rest.
const LINES_TRIED: usize = 64;
const CHANGES_TRIED: usize = 192;
/// Context lengths that must give the same following tokens, in thousandths of the longest: they do not if the tokens depend on where a tokenizer begins.
/// Unequal steps, so that in a repetitive text they have odd and even numbers of repetitions.
const CONTEXTS: [usize; 7] = [909, 831, 739, 661, 587, 443, 333];

/// The cuts of one text.
pub(super) struct Cuts {
    tokenizer: Tokenizer,
    separator: String,
    around_bytes: usize,
}

impl Cuts {
    /// Returns the cuts for a tokenizer and the separator after the text; `None`: any cut is permitted.
    pub(super) fn new(tokenizer: &Tokenizer, separator: &str) -> Option<Self> {
        Self::around(tokenizer, separator, AROUND_BYTES)
    }

    fn around(tokenizer: &Tokenizer, separator: &str, around_bytes: usize) -> Option<Self> {
        let (tokenizer, separator) = (tokenizer.clone(), separator.to_owned());
        (!matches!(tokenizer, Tokenizer::Bytes)).then_some(Self { tokenizer, separator, around_bytes })
    }

    /// Returns the end of a text in two parts, on which the following tokens depend.
    pub(super) fn context(&self, before: &str, text: &str) -> String {
        let missing = self.around_bytes.saturating_sub(text.len());
        [tail(before, missing), tail(text, self.around_bytes)].concat()
    }

    /// Returns the last permitted cut of a text: the rest adds tokens to those before the cut, and changes none of them. `before` is the end of the text already
    /// cut off. `None`: no tried place is permitted.
    ///
    /// # Errors
    /// The tokenizer's error, or a tokenizer that looks too far ahead.
    pub(super) fn last(&self, before: &str, text: &str) -> Result<Option<usize>, String> {
        self.tokenizer.check_reach()?;
        // A cut needs this much text on either side.
        let end = text.floor_char_boundary(text.len().saturating_sub(self.around_bytes));
        let lines = text[..end].rmatch_indices('\n').map(|(at, _)| at + 1).take(LINES_TRIED);
        let changes = changes(&text[..end]).take(CHANGES_TRIED);
        for at in lines.chain(changes).filter(|at| *at >= self.around_bytes) {
            let behind = text.ceil_char_boundary((at + self.around_bytes).min(text.len()));
            let context = self.context(before, &text[..at]);
            // A text before the cut would be taken for the end, with a separator that has tokens.
            if !self.tokenizer.is_taken(&context, &self.separator)?
                && self.is_one(&context, &text[at..behind])?
            {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn is_one(&self, context: &str, behind: &str) -> Result<bool, String> {
        let shorter = CONTEXTS.map(|part| tail(context, (context.len() * part / 1000) | 1));
        // A tokenizer may drop white space at the ends of a text, and other characters anywhere.
        let shortest = shorter.last().copied().unwrap_or_default();
        if shortest.trim().is_empty() || self.tokenizer.encode(shortest)?.is_empty() {
            return Ok(false);
        }
        let Some(added) = self.tokenizer.added(context, behind)? else { return Ok(false) };
        for context in shorter {
            if self.tokenizer.added(context, behind)?.as_ref() != Some(&added) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the last characters of a text, at most `bytes` bytes.
fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Returns the error for a text without a permitted cut.
pub(super) fn nowhere(path: &std::path::Path, offset: u64, bytes: usize) -> DataError {
    DataError::Malformed {
        path: path.to_owned(),
        format: "text",
        place: format!("byte {offset}"),
        reason: format!(
            "the tokenizer treats {} or more as one word, which is too long to tokenise: break it into lines, or leave it out",
            indicatif::BinaryBytes(bytes as u64)
        ),
    }
}

/// Returns the places between characters of different kinds, last one first.
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
    use std::sync::LazyLock;

    use longhaul_common::config::DataFormat;
    use serde_json::Value;

    use super::super::input::Input;
    use super::super::text::TextChunks;
    use super::super::{Record, Records};
    use super::*;
    use crate::Recipe;

    /// Returns the content of `tests/fixtures/tokenizers.json`.
    fn made() -> Vec<Value> {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers.json");
        serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap()
    }

    /// Returns a tokenizer of each class: see `make_tokenizers.py`. They are slow to make.
    fn tokenizers() -> &'static [(String, Tokenizer, String)] {
        static ALL: LazyLock<Vec<(String, Tokenizer, String)>> = LazyLock::new(make);
        &ALL
    }

    fn make() -> Vec<(String, Tokenizer, String)> {
        let made = made().into_iter().map(|made| {
            let json = serde_json::to_vec(&made["tokenizer"]).unwrap();
            let texts = made["texts"].as_array().unwrap().iter().filter_map(Value::as_str);
            let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
            (made["name"].to_string(), tokenizer, texts.collect::<Vec<_>>().join("\n  \n\t"))
        });
        made.collect()
    }

    /// Returns the chunks of a text, of `bytes` bytes.
    fn chunks(text: &str, tokenizer: &Tokenizer, bytes: usize) -> Vec<Record> {
        let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap();
        let input = input.checked(&Recipe::plain(DataFormat::Text)).unwrap();
        let mut chunks = TextChunks::with_cuts(input, bytes, Cuts::around(tokenizer, "", 200));
        std::iter::from_fn(|| chunks.next_record().transpose()).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn tokens_of_a_text_that_is_cut_are_those_of_the_whole() {
        for (name, tokenizer, text) in tokenizers() {
            // Several lines, and one.
            for text in [text.repeat(9), text.repeat(9).replace('\n', " ")] {
                let whole = tokenizer.encode(&text).unwrap();
                for bytes in [600, 701, 1024] {
                    let chunks = chunks(&text, tokenizer, bytes);
                    assert!(chunks.len() > 4, "{name}: {} chunks", chunks.len());
                    let parts = chunks.iter().map(|chunk| {
                        let (before, text) = chunk.as_text().unwrap();
                        tokenizer.encode_behind(before, text, "").unwrap()
                    });
                    assert_eq!(parts.collect::<Vec<_>>().concat(), whole, "{name}, {bytes}: {text:?}");
                }
            }
        }
    }

    /// Returns a tokenizer of this class in `tests/fixtures/tokenizers.json`.
    fn of_class(class: &str) -> &'static Tokenizer {
        &tokenizers().iter().find(|(name, ..)| name.contains(class)).unwrap().1
    }

    fn assert_whole(text: &str, tokenizer: &Tokenizer) {
        let whole = tokenizer.encode(text).unwrap();
        let chunks = chunks(text, tokenizer, 1000);
        assert!(chunks.len() > 1);
        let parts = chunks.iter().map(|chunk| {
            let (before, text) = chunk.as_text().unwrap();
            tokenizer.encode_behind(before, text, "").unwrap()
        });
        assert!(parts.collect::<Vec<_>>().concat() == whole);
    }

    /// The last chunk alone has the separator, though each line ends as if it had one.
    #[test]
    fn no_chunk_but_the_last_ends_with_a_separator_that_a_token_would_take() {
        let (mut json, text) = (made()[0]["tokenizer"].clone(), "some words of a text<eot>\n".repeat(90));
        json["added_tokens"] = serde_json::json!([{ "id": 99_999, "content": "<eot>", "single_word": false, "lstrip": false,
            "rstrip": true, "normalized": false, "special": true }]);
        let json = serde_json::to_vec(&json).unwrap();
        let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
        let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap();
        let input = input.checked(&Recipe::plain(DataFormat::Text)).unwrap();
        let mut chunks = TextChunks::with_cuts(input, 1000, Cuts::around(&tokenizer, "\n", 200));
        let mut made = Vec::new();
        while let Some(chunk) = chunks.next_record().unwrap() {
            let (before, text) = chunk.as_text().unwrap();
            made.push(tokenizer.encode_behind(before, text, "\n").unwrap());
        }
        assert!(made.len() > 1);
        // Without the blank that it puts before a text.
        let end = tokenizer.encode("a\n").unwrap().split_off(1);
        assert!(made.concat() == [tokenizer.encode(&text).unwrap(), end].concat());
    }

    /// White space stripped by a normalizer at the ends of a text, and merges of pairs of line ends.
    #[test]
    fn runs_of_white_space_beyond_what_the_tokenizer_is_asked_about_are_not_cut() {
        let words = "some words of a text\n".repeat(40);
        for run in ["\n".repeat(901), "   \n".repeat(300), " ".repeat(1201)] {
            for class in ["without the white space around it", "T5", "GPT-2", "Llama 3", "Llama 2", "Mistral"]
            {
                assert_whole(&[&words, run.as_str(), &words].concat(), of_class(class));
            }
        }
    }

    /// A line end at the start of the examined part, and another after it.
    #[test]
    fn no_chunk_is_as_short_as_a_line_end_before_a_line_without_end() {
        let line = "a line of words ".repeat(200);
        for head in ["Title\n\n", "line\n\n   \n", "\n\n", "x\n"] {
            for class in ["GPT-2", "without the white space around it", "T5", "Llama 3"] {
                assert_whole(&format!("{head}{line}\n\n{line}"), of_class(class));
            }
        }
    }

    #[test]
    fn a_tokenizer_that_looks_back_further_is_refused_by_what_it_looks_for() {
        let json = |step: &Value| {
            serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": step, "post_processor": null, "decoder": null,
                "model": { "type": "WordLevel", "unk_token": "?", "vocab": { "?": 0, "eight": 1, "\n": 2 } }
            })
        };
        let split = |pattern: &str| serde_json::json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let fixed = serde_json::json!({ "type": "FixedLength", "length": 4 });
        let steps = [
            split("\"[^\"]*\"|\\s"),
            split(r"/\*[\s\S]*?\*/|\s"),
            split("```[\\s\\S]*?```|\\s"),
            split("<[^>]+>|\\s"),
            fixed,
        ];
        for step in steps {
            let json = serde_json::to_vec(&json(&step)).unwrap();
            let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
            let text = "eight words\n".repeat(300);
            let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap();
            let input = input.checked(&Recipe::plain(DataFormat::Text)).unwrap();
            let mut chunks = TextChunks::with_cuts(input, 1000, Cuts::around(&tokenizer, "", 200));
            let message = chunks.next_record().unwrap_err().to_string();
            assert!(message.contains("make a record of each document"), "{step}: {message}");
        }
    }

    /// Words of a fixed number of characters, counted from each line's start: no context shows this in a run of one character.
    #[test]
    fn a_tokenizer_that_counts_characters_is_refused_though_it_begins_anew_with_each_line() {
        let all = made();
        let bytes = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let line = serde_json::json!({ "type": "Split", "pattern": { "String": "\n" }, "behavior": "Isolated", "invert": false });
        let some = serde_json::json!({ "type": "Split", "pattern": { "Regex": ".{1,7}" }, "behavior": "Isolated", "invert": false });
        for counts in [serde_json::json!({ "type": "FixedLength", "length": 7 }), some] {
            let mut json = all[0]["tokenizer"].clone();
            json["pre_tokenizer"] =
                serde_json::json!({ "type": "Sequence", "pretokenizers": [line, counts, bytes] });
            let json = serde_json::to_vec(&json).unwrap();
            let tokenizer = Tokenizer::of_json(json, Path::new("tokenizer.json")).unwrap();
            let message = tokenizer.check_reach().unwrap_err();
            assert!(message.contains("make a record of each document"), "{message}");
        }
    }

    /// Each is one word to a tokenizer of bytes.
    #[test]
    fn a_word_without_an_end_makes_a_chunk_larger_and_no_cut_goes_through_it() {
        let (_, tokenizer, _) = &tokenizers()[0];
        let word = "abcdefg".repeat(1000);
        let text = format!("one two {word} three {word}");
        let whole = tokenizer.encode(&text).unwrap();
        let chunks = chunks(&text, tokenizer, 600);
        assert!(chunks.len() > 1);
        let parts = chunks.iter().map(|chunk| {
            let (before, text) = chunk.as_text().unwrap();
            tokenizer.encode_behind(before, text, "").unwrap()
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
