//! Measured values.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A measured value of a named case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub metric: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

/// Creates a [`Figure`].
pub const fn figure(metric: &'static str, value: f64, unit: &'static str) -> Figure {
    Figure { metric, value, unit }
}

/// A measured value, as printed by benchmarks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub bench: String,
    pub case: String,
    pub metric: String,
    pub value: f64,
    pub unit: String,
}

/// Reads the lines of a file.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let line = |text| serde_json::from_str(text).with_context(|| format!("read the figure {text:?}"));
    text.lines().map(line).collect()
}
