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

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}
