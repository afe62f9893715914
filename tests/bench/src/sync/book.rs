//! Results as JSON lines in a file.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::kit::figures::{self, Figure, Line};

/// All lines so far. Those of a case are written together at its end, so each case is complete.
pub struct Book {
    lines: Vec<Line>,
    file: Option<File>,
}

impl Book {
    /// Reads the file, if it exists; new lines are appended to it.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self { lines: Vec::new(), file: None }) };
        let lines = if path.exists() { Self::read(path)?.lines } else { Vec::new() };
        let file = File::options().create(true).append(true).open(path);
        Ok(Self { lines, file: Some(file.with_context(|| format!("open {}", path.display()))?) })
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { lines: figures::read(path)?, file: None })
    }

    /// Returns the lines of a case; none if not measured yet.
    pub fn case<'a>(&'a self, bench: &'a str, case: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.bench == bench && line.case == case)
    }

    /// Returns a measured value.
    pub fn value(&self, bench: &str, case: &str, metric: &str) -> Option<f64> {
        self.case(bench, case).find(|line| line.metric == metric).map(|line| line.value)
    }

    /// Returns the lines of a benchmark.
    pub fn bench<'a>(&'a self, bench: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines.iter().filter(move |line| line.bench == bench)
    }

    /// Adds a case, also to the file.
    pub fn add(&mut self, bench: &str, case: &str, figures: &[Figure]) -> Result<()> {
        let mut text = String::new();
        for &Figure { metric, value, unit } in figures {
            let [bench, case, metric, unit] = [bench, case, metric, unit].map(str::to_owned);
            let line = Line { bench, case, metric, value: rounded(value), unit };
            text += &serde_json::to_string(&line)?;
            text.push('\n');
            self.lines.push(line);
        }
        match &mut self.file {
            // In one write, so that cases are complete.
            Some(file) => file.write_all(text.as_bytes()).context("write the figures down"),
            None => Ok(()),
        }
    }
}

/// Rounds to five significant digits: figures range from hundredths of a bit to billions of bytes.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::figures::figure;

    #[test]
    fn a_book_that_is_opened_again_has_the_cases_that_were_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut book = Book::open(Some(&path)).unwrap();
        let figures = [figure("loss", 1.234_567_8, "nats"), figure("bits", 0.0123, "bits")];
        book.add("sync/quality", "dense", &figures).unwrap();
        let again = Book::open(Some(&path)).unwrap();
        assert_eq!(again.lines, book.lines);
        assert_eq!(again.value("sync/quality", "dense", "loss"), Some(1.2346));
        assert_eq!(again.case("sync/quality", "demo").count(), 0);
    }
}
