//! The unknown token of a tokenizer.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Tokenizer;
use super::separator::listed;

/// The unknown token, as named by the model.
#[cfg_attr(not(feature = "tokenizers"), allow(dead_code, reason = "bytes have none"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownToken {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// Whether a text with its name becomes this token, as a special one does.
    pub(crate) is_added: bool,
}

/// Amount of text under the unknown token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnknownText {
    /// Characters of the texts.
    pub(crate) characters: u64,
    /// Those under the token.
    pub(crate) unknown: u64,
    /// Tokens that cover part of a separator.
    pub(crate) at_separators: u64,
}

impl UnknownText {
    pub(crate) fn add(&mut self, other: &Self) {
        self.characters += other.characters;
        self.unknown += other.unknown;
        self.at_separators += other.at_separators;
    }

    /// Whether nothing was counted.
    pub(crate) fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl UnknownToken {
    /// Counts it among little-endian tokens of `token_bytes` bytes each.
    pub(crate) fn count(&self, tokens: &[u8], token_bytes: usize) -> u64 {
        let number = self.number.to_le_bytes();
        let number = &number[..token_bytes.min(number.len())];
        tokens.chunks_exact(token_bytes).filter(|token| *token == number).count() as u64
    }

    /// Counts its name in a text, for example as a separator: these are not unknown.
    pub(crate) fn mentions(&self, text: &str) -> u64 {
        if self.is_added && !self.name.is_empty() { text.matches(&self.name).count() as u64 } else { 0 }
    }

    /// Counts the characters under it, given the byte ranges that became it. The text may end with a separator. A range that spells the token is not
    /// unknown.
    pub(crate) fn under(&self, text: &str, parts: &[Range<usize>], separator: &str) -> UnknownText {
        let is_named = |part: &Range<usize>| {
            self.is_added && text.get(part.clone()).is_some_and(|part| part.trim() == self.name)
        };
        let separator_at = text.strip_suffix(separator).unwrap_or(text).len();
        let mut found =
            UnknownText { characters: count_characters(text.as_bytes()), ..UnknownText::default() };
        let mut seen = 0;
        for part in parts.iter().filter(|part| !is_named(part)) {
            let end = part.end.min(text.len());
            // Several tokens may cover one character.
            let more = text.as_bytes().get(part.start.max(seen)..end).unwrap_or_default();
            found.unknown += count_characters(more);
            found.at_separators += u64::from(end > separator_at);
            seen = seen.max(end);
        }
        found
    }
}

impl Tokenizer {
    /// Counts the characters of a text under its unknown token, given the tokens added after `before`. The text may end with the separator. Finding the
    /// ranges costs as much as tokenising, so this is done only if a token is unknown.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub(crate) fn unknown_text(
        &self,
        before: &str,
        text: &str,
        tokens: &[u32],
        separator: &str,
    ) -> Result<UnknownText, String> {
        let (Self::Json { tokenizer, .. }, Some(unknown)) = (self, self.unknown()) else {
            return Ok(UnknownText::default());
        };
        // An unknown token may continue from before.
        let goes_on =
            || Ok::<_, String>(!before.is_empty() && self.encode(before)?.last() == Some(&unknown.number));
        let is_there = tokens.contains(&unknown.number) || goes_on()?;
        let parts = if is_there { tokenizer.unknown_parts(&[before, text].concat())? } else { Vec::new() };
        let behind = parts.into_iter().filter(|part| part.end > before.len());
        let parts: Vec<Range<usize>> =
            behind.map(|part| part.start.saturating_sub(before.len())..part.end - before.len()).collect();
        Ok(unknown.under(text, &parts, separator))
    }

    /// Refuses a separator that becomes the unknown token, in whole or in part, without spelling it. If a character's token depends on its place, a
    /// separator after a text may have other tokens.
    pub(super) fn check_known(&self, separator: &str) -> Result<(), String> {
        let (Self::Json { tokenizer, .. }, Some(unknown)) = (self, self.unknown()) else { return Ok(()) };
        if self.depends_on_place() || separator.contains(&unknown.name) {
            return Ok(());
        }
        let mut special = tokenizer.special();
        special.retain(|name| *name != unknown.name);
        match self.encode(separator) {
            Ok(tokens) if tokens.contains(&unknown.number) => Err(format!(
                "the tokenizer does not know it, or a part of it, and would put its unknown token `{}` there; name one that it has tokens for (its special tokens: {}), or separator = \"\" if records should run into each other",
                unknown.name,
                listed(&special)
            )),
            // A failure to tokenise is reported with the text that contains it.
            _ => Ok(()),
        }
    }
}

/// Counts the characters that begin in these bytes of UTF-8, which may be cut anywhere.
fn count_characters(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_among_tokens_of_either_width_and_not_across_two() {
        let token = UnknownToken { number: 0x0201, name: "<unk>".to_owned(), is_added: true };
        for (tokens, token_bytes, count) in [
            (&[1, 2, 1, 2, 2, 1][..], 2, 2),
            (&[0, 1, 2, 0], 2, 0),
            (&[1, 2, 0, 0, 1, 2, 1, 0], 4, 1),
            (&[0, 0, 1, 2, 0, 0, 0, 0], 4, 0),
            (&[], 2, 0),
        ] {
            assert_eq!(token.count(tokens, token_bytes), count, "{tokens:?}");
        }
    }

    #[test]
    fn characters_under_it_are_counted_once_and_a_separator_s_part_is_noted() {
        let token = UnknownToken { number: 0, name: "<unk>".to_owned(), is_added: true };
        let text = "añb <unk> é|";
        for (parts, separator, expected) in [
            (&[][..], "|", (0, 0)),
            (&[(0, 4)], "|", (3, 0)),
            // The second one names it.
            (&[(0, 4), (5, 10), (11, 13)], "|", (4, 0)),
            // Two bytes of a character, each by itself, and the same part twice.
            (&[(1, 2), (2, 3), (11, 13), (11, 13)], "|", (2, 0)),
            (&[(11, 14)], "|", (2, 1)),
            (&[(11, 14)], "", (2, 0)),
            (&[(11, 14)], "?", (2, 0)),
            // Ranges outside this text.
            (&[(13, 99)], "|", (1, 1)),
        ] {
            let parts: Vec<Range<usize>> = parts.iter().map(|(start, end)| *start..*end).collect();
            let found = token.under(text, &parts, separator);
            assert_eq!((found.unknown, found.at_separators), expected, "{parts:?}, {separator}");
            assert_eq!(found.characters, 12);
        }
    }

    #[test]
    fn a_text_names_it_only_where_that_becomes_the_token() {
        let mut token = UnknownToken { number: 0, name: "<unk>".to_owned(), is_added: true };
        assert_eq!(token.mentions("the <unk> of <unk><unk> and <UNK>"), 3);
        token.is_added = false;
        assert_eq!(token.mentions("<unk>"), 0);
    }
}
