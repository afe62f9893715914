//! Separators behind texts: neither may change the tokens of the other beyond a merge.

use super::Tokenizer;
use super::separator::listed;

/// A character of words.
pub(super) const LETTER: char = 'a';
/// Ends of texts to try.
const ENDS: [&str; 2] = ["a", "a."];

impl Tokenizer {
    /// Refuses a separator that is lost behind a usual text.
    ///
    /// # Errors
    /// It is: the reason.
    pub(super) fn check_behind_text(&self, separator: &str) -> Result<(), String> {
        let Self::Json { tokenizer, .. } = self else { return Ok(()) };
        if let Some(token) = tokenizer.no_token_behind_letters(separator) {
            return Err(format!(
                "its token {token} is none where a letter or a digit stands beside it (`single_word` in the tokenizer's file), and most texts end so: take another separator, begin it with \"\\n\", or set `single_word` to false"
            ));
        }
        let is_lost = |end: &str| {
            let (Ok(alone), Ok(behind)) = (self.encode(end), self.encode(&[end, separator].concat())) else {
                return false;
            };
            let is_known = |number: &u32| self.unknown().is_none_or(|unknown| unknown.number != *number);
            !separator.is_empty() && alone == behind && alone.iter().all(is_known)
        };
        match ENDS.into_iter().find(|end| is_lost(end)) {
            None => Ok(()),
            Some(end) => Err(format!(
                "the tokenizer makes no token of it behind a text ({end:?}), so that records would run into each other; name one that it has a token for (its special tokens: {}), or separator = \"\" if they should",
                listed(&tokenizer.special())
            )),
        }
    }

    /// Refuses a separator that becomes a gap between words, as where a normalizer makes blanks of line ends. Blanks themselves are taken as they are.
    ///
    /// # Errors
    /// It does: the reason.
    pub(super) fn check_no_gap(&self, separator: &str) -> Result<(), String> {
        let Self::Json { tokenizer, .. } = self else { return Ok(()) };
        if separator.chars().all(|character| character == ' ') {
            return Ok(());
        }
        let gaps = [" ".to_owned(), " ".repeat(separator.chars().count())];
        let is_gap = |gap: &String, end: &str| {
            let [made, of_gap] = [separator, gap.as_str()].map(|behind| self.encode(&[end, behind].concat()));
            made.is_ok_and(|made| of_gap == Ok(made))
        };
        match gaps.iter().any(|gap| ENDS.into_iter().all(|end| is_gap(gap, end))) {
            false => Ok(()),
            true => Err(format!(
                "its tokens are those of a blank, so that nothing tells the end of a record from a gap between words; name a special token of the tokenizer (these are {}), or separator = \" \" if a blank should do",
                listed(&tokenizer.special())
            )),
        }
    }

    /// Whether some text may take the blanks at the start of this separator: an added token does so with those after it (`rstrip`).
    pub(crate) fn may_take(&self, separator: &str) -> bool {
        let Self::Json { tokenizer, .. } = self else { return false };
        separator.starts_with(char::is_whitespace) && tokenizer.has_strip_behind()
    }

    /// Whether a text ends with the separator, and its last token takes the blanks of this.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub(crate) fn is_taken(&self, text: &str, separator: &str) -> Result<bool, String> {
        let Some(body) = text.strip_suffix(separator).filter(|_| self.may_take(separator)) else {
            return Ok(false);
        };
        if !self.encode(body)?.last().is_some_and(|last| self.strips_behind(*last)) {
            return Ok(false);
        }
        // The model may make the token, too, and then takes no blanks.
        Ok(self.encode(text)? == self.encode(&[body, separator.trim_start()].concat())?)
    }

    /// Whether it is an added token that takes the blanks after it.
    pub(super) fn strips_behind(&self, token: u32) -> bool {
        matches!(self, Self::Json { tokenizer, .. } if tokenizer.strips_behind(token))
    }

    /// Returns the tokens of a separator, as behind a letter where they are tokens of its own there.
    pub(super) fn separator_tokens(&self, separator: &str) -> Result<Vec<u32>, String> {
        let behind = self.added(LETTER.encode_utf8(&mut [0; 4]), separator).ok().flatten();
        behind.filter(|tokens| !tokens.is_empty()).map_or_else(|| self.encode(separator), Ok)
    }
}
