//! Which column of a table holds the text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a column's name in quotes, or its number from 1 on, is wanted")]
pub enum Column {
    /// By its name: a CSV file's first line has them.
    Name(String),
    /// By its place, from 1 on: a CSV file's first line is then a record.
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
