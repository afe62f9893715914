//! Dialects of delimited text.

use std::fmt;

/// The characters that divide a delimited text into rows and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Separates values.
    pub delimiter: u8,
    /// Encloses values with delimiters, line breaks or quotes; `None`: no quoting.
    pub quote: Option<u8>,
    /// Makes the next character text, inside and outside quotes; `None`: quotes are doubled.
    pub escape: Option<u8>,
}

impl Dialect {
    /// Returns RFC 4180 with these characters instead of its own.
    ///
    /// # Errors
    /// Names the refused character.
    pub(super) fn of(
        default: u8,
        delimiter: Option<&str>,
        quote: Option<&str>,
        escape: Option<&str>,
    ) -> Result<Self, &'static str> {
        let delimiter = match delimiter {
            None => default,
            Some(text) => character(text).ok_or(
                "its delimiter is one ASCII character, such as \";\", and no line break: \"\\t\" is a tab",
            )?,
        };
        let quote = match quote {
            None => Some(b'"'),
            Some("") => None,
            Some(text) => Some(character(text).ok_or(
                "its quote is one ASCII character, such as \"'\", and no line break, or \"\" where quotes are text as any other",
            )?),
        };
        let escape = match escape {
            None => None,
            Some(text) => Some(
                character(text)
                    .ok_or("its escape is one ASCII character, such as \"\\\\\", and no line break")?,
            ),
        };
        if quote == Some(delimiter) || escape == Some(delimiter) || (escape.is_some() && escape == quote) {
            return Err("its delimiter and its quote and its escape are three characters");
        }
        Ok(Self { delimiter, quote, escape })
    }
}

/// Displays the characters, as in the identity of prepared data.
impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delimiter, quote, escape } = self;
        write!(f, "delimiter {:?}", char::from(*delimiter))?;
        if let Some(quote) = quote {
            write!(f, ", quote {:?}", char::from(*quote))?;
        }
        escape.map_or(Ok(()), |escape| write!(f, ", escape {:?} everywhere", char::from(escape)))
    }
}

fn character(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\r' | b'\n') => Some(*byte),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_as_rfc_4180_has_it_unless_it_is_said() {
        let plain = Dialect::of(b',', None, None, None).unwrap();
        assert_eq!(plain, Dialect { delimiter: b',', quote: Some(b'"'), escape: None });
        assert_eq!(plain.to_string(), "delimiter ',', quote '\"'");
        let other = Dialect::of(b'\t', Some("|"), Some(""), None).unwrap();
        assert_eq!(other, Dialect { delimiter: b'|', quote: None, escape: None });
        let escaped = Dialect::of(b',', Some(";"), Some("'"), Some("\\")).unwrap();
        assert_eq!(escaped.to_string(), "delimiter ';', quote '\\'', escape '\\\\' everywhere");
    }

    #[test]
    fn characters_that_leave_a_row_in_doubt_are_refused() {
        for (delimiter, quote, escape) in [
            (Some(""), None, None),
            (Some("ab"), None, None),
            (Some("ä"), None, None),
            (Some("\n"), None, None),
            (Some("\""), None, None),
            (None, Some("\r"), None),
            (None, Some("''"), None),
            (None, Some(","), None),
            (None, None, Some("")),
            (None, None, Some(",")),
            (None, None, Some("\"")),
        ] {
            let refused = Dialect::of(b',', delimiter, quote, escape);
            assert!(refused.is_err(), "{delimiter:?} {quote:?} {escape:?}");
        }
    }
}
