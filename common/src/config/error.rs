//! Errors of a `run.toml`, with remedies.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::ser::ValueSerializer;

use super::data_url::without_secrets;
use super::other_names;

/// Errors of a `run.toml`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Invalid TOML, a value of the wrong type, or a missing required key.
    #[error("{0}")]
    Syntax(String),
    /// An unknown key.
    #[error("unknown key `{key}`{} the keys there are {known}", suggestion(*here, nearest.as_deref()))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The nearest known key, if similar.
        nearest: Option<String>,
        /// The equivalent of another tool's key.
        here: Option<&'static str>,
        /// All keys of that table, for display.
        known: String,
    },
    /// An invalid value, alone or in combination.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// The key with its table: `train.batch`.
        key: &'static str,
        /// The value as written.
        value: String,
        /// Fault and remedy.
        reason: String,
    },
}

/// Parses a TOML file with readable errors.
///
/// # Errors
/// [`ConfigError`] names the line or the key, and the remedy.
pub fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::from_toml::<T>(&error, text))
}

fn suggestion(here: Option<&str>, nearest: Option<&str>) -> String {
    match (here, nearest) {
        (Some(here), _) => format!(": here that is {here};"),
        (None, Some(key)) => format!(", did you mean `{key}`? Otherwise,"),
        (None, None) => ";".to_owned(),
    }
}

impl ConfigError {
    /// Adds the equivalent of another tool's key to an error of a run's configuration.
    pub(crate) fn of_run(self) -> Self {
        match self {
            Self::UnknownKey { key, nearest, known, .. } => {
                Self::UnknownKey { here: other_names::here(&key), key, nearest, known }
            }
            other => other,
        }
    }

    pub(crate) fn value(key: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Self::Value { key, value: without_secrets(&value.to_string()), reason: reason.into() }
    }

    /// Converts an error of parsing a `T`. For an unknown field ("unknown field `x`, expected one of `a`,
    /// `b`") it finds the nearest.
    fn from_toml<T: DeserializeOwned>(error: &toml::de::Error, text: &str) -> Self {
        let message = error.message();
        if let Some(rest) = message.strip_prefix("unknown field `")
            && let Some((key, known)) = rest.split_once('`')
        {
            let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
            let nearest = known
                .iter()
                .map(|name| (strsim::jaro_winkler(key, name), *name))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                // Below this, the nearest name is arbitrary rather than a typo.
                .filter(|(similarity, _)| *similarity > 0.75)
                .map(|(_, name)| name.to_owned());
            return Self::UnknownKey { key: key.to_owned(), nearest, here: None, known: known.join(", ") };
        }
        let Some(span) = error.span() else { return Self::Syntax(message.to_owned()) };
        let index = text.get(..span.start).unwrap_or(text).matches('\n').count();
        let written = without_secrets(text.lines().nth(index).unwrap_or_default().trim());
        let reason = names_at::<T>(message, span, text).unwrap_or_else(|| plainly(message));
        Self::Syntax(format!("line {}, `{written}`: {reason}", index + 1))
    }
}

/// Returns the names for a value that is not a name; the parser lists them only for an unknown name.
fn names_at<T: DeserializeOwned>(message: &str, span: Range<usize>, text: &str) -> Option<String> {
    if message != "wanted string or table" {
        return None;
    }
    let asked = format!("{}\"\"{}", text.get(..span.start)?, text.get(span.end..)?);
    let error = toml::from_str::<T>(&asked).err()?;
    let names = error.message().strip_prefix("unknown variant ``, expected ")?;
    Some(format!("a name in quotes is wanted: {names}"))
}

/// Describes this program's types.
fn plainly(message: &str) -> String {
    let types = [
        ("u32", "a whole number from 0 to 4294967295 is wanted"),
        ("u64", "a whole number from 0 on is wanted"),
        ("usize", "a whole number from 0 on is wanted"),
        ("f64", "a number is wanted"),
        ("a boolean", "true or false is wanted"),
        ("a string", "text in quotes is wanted"),
    ];
    let found = message.rsplit_once(", expected ");
    let plain = found.and_then(|(what, wanted)| {
        let (_, words) = types.into_iter().find(|(name, _)| *name == wanted)?;
        Some(format!("{what}: {words}"))
    });
    plain.unwrap_or_else(|| message.to_owned())
}

/// Formats a value as in a file, without quotes.
pub(super) fn shown<T: Serialize>(value: &T) -> String {
    let mut text = String::new();
    // Parsed values can be written; if not, the key suffices.
    let _ = value.serialize(ValueSerializer::new(&mut text));
    text.trim_matches('"').to_owned()
}
