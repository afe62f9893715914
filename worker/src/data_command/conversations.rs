//! Rows of conversations as text.

use std::fmt;

use anyhow::{Error, Result};
use longhaul_data::{RowToken, Tokenizer};

/// The text of a row: each conversation behind a line, and its trained parts in brackets.
pub(super) struct Marked(String);

impl Marked {
    /// Explains the brackets.
    pub(super) const SUMMARY: &'static str = "with ⟦what is trained on⟧";
    const BRACKETS: [&'static str; 2] = ["⟦", "⟧"];
    const LINE: &'static str = "-----\n";

    pub(super) fn of(row: &[RowToken], tokenizer: &Tokenizer) -> Result<Self> {
        let (mut text, mut conversations) = (String::new(), 0);
        let is_same = |one: &RowToken, next: &RowToken| one.is_trained == next.is_trained && !next.is_start;
        for part in row.chunk_by(|one, next| is_same(one, next) && !next.is_padding) {
            let [first, ..] = part else { continue };
            if first.is_padding {
                break;
            }
            if first.is_start {
                if conversations > 0 && !text.ends_with('\n') {
                    text.push('\n');
                }
                text += if conversations > 0 { Self::LINE } else { "" };
                conversations += 1;
            }
            let tokens: Vec<u32> = part.iter().map(|token| token.token).collect();
            let decoded = tokenizer.decode(&tokens).map_err(Error::msg)?;
            let [open, close] = if first.is_trained { Self::BRACKETS } else { [""; 2] };
            text += &format!("{open}{decoded}{close}");
        }
        Ok(Self(text))
    }
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trained_parts_are_in_brackets_and_conversations_on_their_own() {
        let token = |character: char, is_trained, is_start| RowToken {
            token: character as u32,
            is_trained,
            is_start,
            is_padding: character == '_',
        };
        let row = [
            token('q', false, true),
            token('a', true, false),
            token('b', true, false),
            token('r', false, true),
            token('s', false, false),
            token('c', true, false),
            token('_', false, false),
            token('_', false, false),
        ];
        assert_eq!(Marked::of(&row, &Tokenizer::Bytes).unwrap().to_string(), "q⟦ab⟧\n-----\nrs⟦c⟧");
    }
}
