//! What can be wrong with a `run.toml`, said so that it can be mended.

use serde::Serialize;
use toml::ser::ValueSerializer;

/// A `run.toml` that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The text is not TOML, or a value has the wrong type, or a required key is missing.
    #[error("{0}")]
    Syntax(String),
    /// A key that does not exist.
    #[error("unknown key `{key}`{} the keys there are {known}", suggestion(nearest.as_deref()))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The known key nearest to it, when one is near.
        nearest: Option<String>,
        /// All keys of that table, as a list for people.
        known: String,
    },
    /// A value that makes no sense, alone or beside another.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// The key with its table: `train.batch`.
        key: &'static str,
        /// The value as written.
        value: String,
        /// What is wrong and what would be right.
        reason: String,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(|| ";".to_owned(), |key| format!(", did you mean `{key}`? Otherwise,"))
}

impl ConfigError {
    pub(super) fn value(key: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Self::Value { key, value: value.to_string(), reason: reason.into() }
    }

    /// Reads serde's words for an unknown field, "unknown field `x`, expected one of `a`, `b`", to name the nearest.
    pub(super) fn from_toml(error: &toml::de::Error, text: &str) -> Self {
        let message = error.message();
        if let Some(rest) = message.strip_prefix("unknown field `")
            && let Some((key, known)) = rest.split_once('`')
        {
            let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
            let nearest = known
                .iter()
                .map(|name| (strsim::jaro_winkler(key, name), *name))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                // Below this, "nearest" is a random name rather than a slip of the finger.
                .filter(|(similarity, _)| *similarity > 0.75)
                .map(|(_, name)| name.to_owned());
            return Self::UnknownKey { key: key.to_owned(), nearest, known: known.join(", ") };
        }
        let Some(span) = error.span() else { return Self::Syntax(message.to_owned()) };
        let index = text.get(..span.start).unwrap_or(text).matches('\n').count();
        let written = text.lines().nth(index).unwrap_or_default().trim();
        Self::Syntax(format!("line {}, `{written}`: {message}", index + 1))
    }
}

/// A value as a file has it, without quotes.
pub(super) fn shown<T: Serialize>(value: &T) -> String {
    let mut text = String::new();
    // What was read from a file can be written to one; where it cannot, the key says enough.
    let _ = value.serialize(ValueSerializer::new(&mut text));
    text.trim_matches('"').to_owned()
}
