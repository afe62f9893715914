//! The text column of a table.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a column's name in quotes, or its number from 1 on, is wanted")]
pub enum Column {
    /// By name, from a CSV file's first line.
    Name(String),
    /// By number, from 1: a CSV file's first line is then a record.
    Number(u32),
}

impl Column {
    /// Returns the name; `None`: the column is given by number.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Number(_) => None,
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}
