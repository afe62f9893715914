//! Counts of a source's texts that people are told: unknown tokens and byte order marks.

use std::fmt;

use indicatif::HumanCount;
use serde::{Deserialize, Serialize};

use super::tokenizer::UnknownToken;
use crate::counted::{are, counted};

/// One unknown token in fewer than so many is worth a warning: such a tokenizer was made for other texts.
const MANY_IN: u64 = 20;
/// In percent, what one decimal would show as nothing.
const SHOWN_MIN: f64 = 0.05;

/// Of a piece, a file or a source. Lists have them, so that they are told of prepared data as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TextCounts {
    /// Tokens that are the unknown one, as the tokenizer has none for what stands there.
    pub(super) unknown_tokens: u64,
    /// Byte order marks, but for the one that a file may begin with.
    pub(super) byte_order_marks: u64,
}

impl TextCounts {
    pub(super) fn add(&mut self, other: &Self) {
        self.unknown_tokens += other.unknown_tokens;
        self.byte_order_marks += other.byte_order_marks;
    }

    /// Whether there is nothing to tell.
    pub(super) fn are_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// How many of a source's tokens are the unknown one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownTokens {
    count: u64,
    all: u64,
    name: String,
}

impl UnknownTokens {
    /// So many of all tokens.
    pub(super) fn of(count: u64, all: u64, token: Option<&UnknownToken>) -> Self {
        token.map_or_else(Self::default, |token| Self { count, all, name: token.name.clone() })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether they are more than a twentieth.
    #[must_use]
    pub fn are_many(&self) -> bool {
        self.count.saturating_mul(MANY_IN) > self.all
    }
}

/// ``3 of 1,200 tokens (0.3 %) are the unknown token `[UNK]`: …``, and of many, what helps.
impl fmt::Display for UnknownTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, all, name } = self;
        let share = 100.0 * *count as f64 / (*all).max(1) as f64;
        let share = if share < SHOWN_MIN { "less than 0.1".to_owned() } else { format!("{share:.1}") };
        write!(
            f,
            "{} of {} ({share} %) {} the unknown token `{name}`: the tokenizer has no token for the text there",
            HumanCount(*count),
            counted(*all, "token"),
            are(*count)
        )?;
        if self.are_many() { f.write_str("; take another one, or train one on such texts") } else { Ok(()) }
    }
}

/// How many byte order marks are characters of a source's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteOrderMarks(pub(super) u64);

impl ByteOrderMarks {
    /// How many there are.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_tokens_are_told_with_their_share_and_of_many_what_helps() {
        let token = UnknownToken { number: 3, name: "<unk>".to_owned(), is_added: true };
        for (count, all, words, is_many) in [
            (1, 4000, "1 of 4,000 tokens (less than 0.1 %) is the unknown token `<unk>`: ", false),
            (2, 4000, "2 of 4,000 tokens (0.1 %) are the unknown token", false),
            (50, 1000, "50 of 1,000 tokens (5.0 %) are", false),
            (51, 1000, "51 of 1,000 tokens (5.1 %) are", true),
            (1, 1, "1 of 1 token (100.0 %) is", true),
        ] {
            let unknown = UnknownTokens::of(count, all, Some(&token));
            let told = unknown.to_string();
            assert!(told.starts_with(words), "{told}");
            assert_eq!((unknown.are_many(), told.contains("take another one")), (is_many, is_many), "{told}");
        }
        assert!(!UnknownTokens::of(0, 0, None).are_many());
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
        counts.add(&TextCounts { unknown_tokens: 2, byte_order_marks: 0 });
        counts.add(&TextCounts { unknown_tokens: 1, byte_order_marks: 5 });
        assert_eq!(counts, TextCounts { unknown_tokens: 3, byte_order_marks: 5 });
        assert!(!counts.are_zero());
    }
}
