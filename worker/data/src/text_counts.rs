//! Reported counts of a source's texts: unknown tokens, byte order marks, and odd texts.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use super::odd_texts::OddTexts;
use super::tokenizer::{UnknownText, UnknownToken};
use crate::counted::{are, counted};

/// More than one unknown token in this many, or one such character in this many, causes a warning: the tokenizer was made for other texts.
const MANY_IN: u64 = 20;
/// Percentages below this would show as 0.0.
const SHOWN_MIN: f64 = 0.05;

/// Counts of a piece, a file or a source. Lists store them, so that they are reported for prepared data as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextCounts {
    /// Unknown tokens, where the tokenizer has no other.
    pub(super) unknown_tokens: u64,
    /// Byte order marks, except at the start of a file.
    pub(super) byte_order_marks: u64,
    /// Lines of plain texts that end with CR LF.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) carriage_returns: u64,
    /// The text under those tokens, for texts tokenised for the list; unknown for existing shards.
    #[serde(default, skip_serializing_if = "UnknownText::is_zero")]
    pub(super) unknown_text: UnknownText,
    #[serde(default, skip_serializing_if = "OddTexts::are_none")]
    pub(super) odd: OddTexts,
}

impl TextCounts {
    pub(super) fn add(&mut self, other: &Self) {
        self.unknown_text.add(&other.unknown_text);
        self.odd.add(&other.odd);
        self.unknown_tokens += other.unknown_tokens;
        self.byte_order_marks += other.byte_order_marks;
        self.carriage_returns += other.carriage_returns;
    }

    /// Whether there is nothing to report.
    pub(super) fn are_zero(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The number of unknown tokens of a source, and the text under them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownTokens {
    count: u64,
    all: u64,
    text: UnknownText,
    name: String,
    separator: String,
}

impl UnknownTokens {
    /// Creates the count for a source with `all` tokens and this separator.
    pub(super) fn of(counts: &TextCounts, all: u64, token: Option<&UnknownToken>, separator: &str) -> Self {
        let TextCounts { unknown_tokens: count, unknown_text: text, .. } = *counts;
        token.map_or_else(Self::default, |token| {
            let (name, separator) = (token.name.clone(), separator.to_owned());
            Self { count, all, text, name, separator }
        })
    }

    /// Returns the count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether they, or the characters under them, exceed a twentieth: one token may stand for many characters.
    #[must_use]
    pub fn are_many(&self) -> bool {
        let are_many = |count: u64, all: u64| count.saturating_mul(MANY_IN) > all;
        are_many(self.count, self.all) || are_many(self.text.unknown, self.text.characters)
    }

    /// Returns the number of tokens that cover part of a separator.
    fn at_separators(&self) -> u64 {
        self.text.at_separators.min(self.count)
    }
}

/// `3 of 1,200 tokens (0.3 %)`
struct Share<'a>(u64, u64, &'a str);

impl fmt::Display for Share<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, all, noun) = *self;
        let share = 100.0 * count as f64 / all.max(1) as f64;
        let share = if share < SHOWN_MIN { "less than 0.1".to_owned() } else { format!("{share:.1}") };
        write!(f, "{} of {} ({share} %)", HumanCount(count), counted(all, noun))
    }
}

/// ``3 of 1,200 tokens (0.3 %) are the unknown token `[UNK]`, for 40 of 5,000 characters counted (0.8 %): …``, with a remedy if they are many.
impl fmt::Display for UnknownTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, all, text, name, separator } = self;
        let at_separators = self.at_separators();
        write!(f, "{} {} the unknown token `{name}`", Share(*count, *all, "token"), are(*count))?;
        if text.unknown > 0 {
            write!(f, ", for {}", Share(text.unknown, text.characters, "counted character"))?;
        }
        if at_separators < *count {
            f.write_str(": the tokenizer has no token for the text there")?;
            if self.are_many() {
                f.write_str("; take another tokenizer, or train one on such texts")?;
            }
        }
        if at_separators > 0 {
            write!(
                f,
                "; {} of them {} where the separator {separator:?} stands: name one that the tokenizer has a token for behind any text, such as a special token",
                HumanCount(at_separators),
                are(at_separators)
            )?;
        }
        Ok(())
    }
}

/// The number of byte order marks within a source's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteOrderMarks(pub(super) u64);

impl ByteOrderMarks {
    /// Returns the count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0
    }
}

/// `2 byte order marks within the text: …`
impl fmt::Display for ByteOrderMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} within the text: files that were joined? Each stays a character (U+FEFF) of it",
            counted(self.0, "byte order mark")
        )
    }
}

/// The number of lines of a source's plain texts that end with CR LF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriageReturns(pub(super) u64);

impl CarriageReturns {
    /// Returns the count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0
    }
}

/// `2 lines end with CR LF: …`
impl fmt::Display for CarriageReturns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.0 == 1 { "ends" } else { "end" };
        write!(
            f,
            "{} {end} with CR LF, and each CR stays a character: `sed 's/\\r$//' IN > OUT` leaves them out",
            counted(self.0, "line")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the count for a source whose records end with `|`.
    fn unknown(count: u64, all: u64, text: UnknownText) -> UnknownTokens {
        let token = UnknownToken { number: 3, name: "<unk>".to_owned(), is_added: true };
        let counts = TextCounts { unknown_tokens: count, unknown_text: text, ..TextCounts::default() };
        UnknownTokens::of(&counts, all, Some(&token), "|")
    }

    #[test]
    fn unknown_tokens_are_told_with_their_share_and_of_many_what_helps() {
        for (count, all, words, is_many) in [
            (1, 4000, "1 of 4,000 tokens (less than 0.1 %) is the unknown token `<unk>`: ", false),
            (2, 4000, "2 of 4,000 tokens (0.1 %) are the unknown token", false),
            (50, 1000, "50 of 1,000 tokens (5.0 %) are", false),
            (51, 1000, "51 of 1,000 tokens (5.1 %) are", true),
            (1, 1, "1 of 1 token (100.0 %) is", true),
        ] {
            let unknown = unknown(count, all, UnknownText::default());
            let told = unknown.to_string();
            assert!(told.starts_with(words), "{told}");
            let is_helped = told.contains("take another tokenizer");
            assert_eq!((unknown.are_many(), is_helped), (is_many, is_many), "{told}");
        }
        assert!(!UnknownTokens::of(&TextCounts::default(), 0, None, "").are_many());
    }

    #[test]
    fn characters_under_unknown_tokens_are_told_and_those_at_separators_blame_these() {
        let text = |unknown, at_separators| UnknownText { characters: 5000, unknown, at_separators };
        for (count, text, words, is_many) in [
            (
                4,
                text(40, 0),
                "4 of 1,200 tokens (0.3 %) are the unknown token `<unk>`, for 40 of 5,000 counted characters (0.8 %): the tokenizer has no token for the text there",
                false,
            ),
            (
                3,
                text(251, 0),
                "251 of 5,000 counted characters (5.0 %): the tokenizer has no token for the text there; take another",
                true,
            ),
            (3, text(4, 1), "there; 1 of them is where the separator \"|\" stands: name one", false),
            (
                70,
                text(70, 70),
                "`<unk>`, for 70 of 5,000 counted characters (1.4 %); 70 of them are where the separator",
                true,
            ),
        ] {
            let unknown = unknown(count, 1200, text);
            let told = unknown.to_string();
            assert!(told.contains(words), "{told}");
            assert_eq!(unknown.are_many(), is_many, "{told}");
        }
    }

    #[test]
    fn byte_order_marks_are_counted_and_asked_for() {
        for (count, words) in [(1, "1 byte order mark within"), (1300, "1,300 byte order marks within")] {
            let told = ByteOrderMarks(count).to_string();
            assert!(told.starts_with(words) && told.contains("files that were joined?"), "{told}");
        }
    }

    #[test]
    fn a_list_without_counts_has_nothing_to_tell() {
        let mut counts = TextCounts::default();
        assert!(counts.are_zero());
        let more = |unknown_tokens, byte_order_marks, characters| {
            let unknown_text = UnknownText { characters, unknown: 1, at_separators: 1 };
            TextCounts { unknown_tokens, byte_order_marks, unknown_text, ..TextCounts::default() }
        };
        counts.add(&more(2, 0, 70));
        counts.add(&more(1, 5, 7));
        let unknown_text = UnknownText { characters: 77, unknown: 2, at_separators: 2 };
        let added =
            TextCounts { unknown_tokens: 3, byte_order_marks: 5, unknown_text, ..TextCounts::default() };
        assert_eq!(counts, added);
        assert!(!counts.are_zero());
    }

    #[test]
    fn a_list_of_a_version_that_counted_tokens_alone_is_read_and_written_alike() {
        let written = r#"{"unknown_tokens":2,"byte_order_marks":1}"#;
        let counts: TextCounts = serde_json::from_str(written).unwrap();
        assert_eq!((counts.unknown_tokens, counts.unknown_text), (2, UnknownText::default()));
        assert_eq!(serde_json::to_string(&counts).unwrap(), written);
    }
}
