//! A word of a text, for messages.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of an excerpt at most: a dozen letters of most scripts.
const BYTES_MAX: usize = 32;

/// The first letters of a word.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Excerpt {
    bytes: [u8; BYTES_MAX],
    len: u8,
}

impl Excerpt {
    /// Takes the word around an offset of a text. A long word is cut before and behind it.
    pub(super) fn around(text: &str, at: usize) -> Self {
        let (before, behind) = text.split_at(text.floor_char_boundary(at));
        let from = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let from = before.floor_char_boundary(from.max(before.len().saturating_sub(BYTES_MAX / 2)));
        let from = before.ceil_char_boundary(from);
        let word = &text[from..before.len() + behind.find(char::is_whitespace).unwrap_or(behind.len())];
        Self::of(word.trim_start())
    }

    fn of(text: &str) -> Self {
        let text = &text.as_bytes()[..text.floor_char_boundary(BYTES_MAX)];
        let mut excerpt = Self { len: text.len() as u8, ..Self::default() };
        excerpt.bytes[..text.len()].copy_from_slice(text);
        excerpt
    }

    /// Whether it has no letters.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.text().chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_debug())?;
            } else {
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl Serialize for Excerpt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

impl<'de> Deserialize<'de> for Excerpt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::of(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_around_a_place_is_shown_and_cut_where_it_is_long() {
        let long = "é".repeat(99);
        for (text, at, expected) in [
            ("un cafÃ© noir", 6, "cafÃ©"),
            ("Ã©", 0, "Ã©"),
            ("a b", 2, "b"),
            ("a\u{3000}bÃ©\tc", 5, "bÃ©"),
            ("", 0, ""),
            ("x\u{8}y", 0, "x\\u{8}y"),
            (&long, 100, &"é".repeat(BYTES_MAX / 2)),
            (&long, 101, &"é".repeat(BYTES_MAX / 2)),
        ] {
            let excerpt = Excerpt::around(text, at);
            assert_eq!(excerpt.to_string(), expected, "{text:?}, {at}");
            let written = serde_json::to_string(&excerpt).unwrap();
            assert_eq!(serde_json::from_str::<Excerpt>(&written).unwrap(), excerpt);
        }
        let longer: Excerpt = serde_json::from_str(&format!("{long:?}")).unwrap();
        assert_eq!(longer.to_string().len(), BYTES_MAX);
    }
}
