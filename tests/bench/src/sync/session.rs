//! A session of the benchmark: remaining cases and time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use longhaul_tests::interrupt;

use super::book::Book;
use super::method::{self, Method};
use crate::kit::args::Only;
use crate::kit::clock::now;
use crate::kit::figures::{Figure, Line, figure};
use crate::kit::progress;
use crate::runs::pytorch;

/// Overhead of a case: starting and ending processes, and a local run before and after it.
const AROUND_A_CASE: Duration = Duration::from_secs(180);

/// Figures have five digits.
const TEXT_MARKS: u64 = 99_991;
/// Benchmark and case of the lines that mark all others of a file.
const RUN: (&str, &str) = ("sync", "run");

/// The user's selection of methods.
pub struct Selected {
    pub only: Only,
    /// Further keys of `[sync]`.
    pub on_trial: Option<String>,
    pub sample: Sample,
}

/// The run of `whole` that stands for all.
pub struct Sample {
    pub seed: u64,
    /// `None`: the demo's text.
    pub text: Option<PathBuf>,
}

impl Default for Sample {
    fn default() -> Self {
        Self { seed: 1, text: None }
    }
}

/// Collects all results.
pub struct Session {
    pub book: Book,
    pub quick: bool,
    selected: Selected,
    began: Instant,
    total: Option<Duration>,
    /// Cases without a figure: no time was left for them, or they failed.
    postponed: Vec<String>,
    failed: Vec<String>,
    /// Found on first use.
    python: Option<Option<pytorch::Python>>,
}

impl Session {
    pub fn start(
        results: Option<&Path>,
        selected: Selected,
        quick: bool,
        hours: Option<f64>,
    ) -> Result<Self> {
        let total = hours.map(|hours| Duration::try_from_secs_f64(hours * 3600.0)).transpose()?;
        let mut book = Book::open(results)?;
        mark(&mut book, &selected.sample, quick)?;
        let (postponed, failed) = (Vec::new(), Vec::new());
        Ok(Self { book, quick, selected, began: now(), total, postponed, failed, python: None })
    }

    /// Returns the seed and the text of whole runs.
    pub fn sample(&self) -> &Sample {
        &self.selected.sample
    }

    /// Returns the selection of methods.
    pub fn only(&self) -> &Only {
        &self.selected.only
    }

    /// Whether a method is selected.
    pub fn wants(&self, method: &str) -> bool {
        self.selected.only.wants(method)
    }

    /// Returns the selected ones of our methods, with the keys on trial.
    pub fn methods(&self) -> Vec<Method> {
        let wanted = method::presets().into_iter().filter(|method| self.wants(method.name));
        match &self.selected.on_trial {
            Some(keys) => wanted.map(|method| method.on_trial(keys)).collect(),
            None => wanted.collect(),
        }
    }

    /// Measures a case that takes at most `limit`, unless it has been measured or no time is left. A failure
    /// is reported and skipped, as the other cases are still useful.
    pub fn case(
        &mut self,
        bench: &str,
        case: &str,
        limit: Duration,
        measure: impl FnOnce(&mut Self) -> Result<Vec<Figure>>,
    ) -> Result<()> {
        if self.book.case(bench, case).next().is_none() {
            let spent = self.began.elapsed();
            if self.total.is_some_and(|total| spent + limit + AROUND_A_CASE > total) {
                self.postponed.push(format!("{bench}: {case}"));
                return Ok(());
            }
            progress(format!("{bench}: {case} (after {} min)", spent.as_secs() / 60));
            match measure(self) {
                Ok(figures) => self.book.add(bench, case, &figures)?,
                Err(error) => {
                    // An interrupt is not the case's failure.
                    interrupt::check()?;
                    progress(format!("{bench}: {case} failed: {error:#}"));
                    self.failed.push(format!("{bench}: {case}"));
                }
            }
        }
        self.book.case(bench, case).for_each(Line::print);
        Ok(())
    }

    /// Prints a derived figure, which is not stored.
    pub fn derived(&self, bench: &str, case: &str, figures: &[Figure]) -> Result<()> {
        let mut book = Book::open(None)?;
        book.add(bench, case, figures)?;
        book.bench(bench).for_each(Line::print);
        Ok(())
    }

    /// Returns the Python with torch, if one exists.
    pub fn python(&mut self) -> Option<&pytorch::Python> {
        let python = self.python.get_or_insert_with(|| {
            let python = pytorch::find();
            if python.is_none() {
                progress("python finds no torch (LONGHAUL_PYTHON names another interpreter): its cases are left out");
            }
            python
        });
        python.as_ref()
    }

    /// Reports missing cases.
    pub fn finish(self) -> Result<()> {
        if !self.postponed.is_empty() {
            progress(format!("no time was left for {}", self.postponed.join("; ")));
        }
        ensure!(self.failed.is_empty(), "these cases failed: {}", self.failed.join("; "));
        Ok(())
    }
}

/// Records which runs a file's figures are of; those of others must not be mixed with them.
fn mark(book: &mut Book, sample: &Sample, quick: bool) -> Result<()> {
    let size = |text: &PathBuf| std::fs::metadata(text).with_context(|| text.display().to_string());
    let text = sample.text.as_ref().map(size).transpose()?.map_or(0, |file| 1 + file.len() % TEXT_MARKS);
    let is_new = book.case(RUN.0, RUN.1).next().is_none();
    let marks = [
        ("quick", f64::from(u8::from(quick)), "with or without --quick", None),
        ("seed", sample.seed as f64, "another --seed", Some(1.0)),
        ("text", text as f64, "another --text", Some(0.0)),
    ];
    for (name, value, differs, unless_named) in marks {
        let known = book.value(RUN.0, RUN.1, name).or(unless_named.filter(|_| !is_new));
        ensure!(
            known.unwrap_or(value) == value,
            "the file has figures of another kind ({differs}): use another one"
        );
        if is_new && unless_named != Some(value) {
            book.add(RUN.0, RUN.1, &[figure(name, value, "")])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Selected {
        Selected { only: Only { only: None }, on_trial: None, sample: Sample::default() }
    }

    #[test]
    fn short_cases_do_not_go_into_a_file_of_long_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let start = |quick| Session::start(Some(&path), everything(), quick, None);
        assert!(start(false).is_ok());
        assert!(start(false).is_ok());
        assert!(start(true).is_err());
    }

    #[test]
    fn a_file_has_figures_of_one_seed_and_one_text() {
        let folder = tempfile::tempdir().unwrap();
        let texts = [1_234_567, 1_234_568].map(|bytes| {
            let path = folder.path().join(bytes.to_string());
            std::fs::write(&path, vec![b'a'; bytes]).unwrap();
            path
        });
        let samples = || {
            let texts = [None, Some(texts[0].clone()), Some(texts[1].clone())];
            texts.into_iter().flat_map(|text| [1, 2].map(|seed| Sample { seed, text: text.clone() }))
        };
        for (i, first) in samples().enumerate() {
            let path = folder.path().join(format!("{i}.jsonl"));
            let start = |sample| {
                Session::start(Some(&path), Selected { sample, ..everything() }, false, None).is_ok()
            };
            assert!(start(first));
            let taken: Vec<usize> = (0..).zip(samples()).filter_map(|(j, s)| start(s).then_some(j)).collect();
            assert_eq!(taken, [i]);
        }
    }

    #[test]
    fn a_case_that_failed_is_told_and_tried_again_and_one_that_was_measured_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let start = || Session::start(Some(&path), everything(), true, None).unwrap();
        let figure = || Ok(vec![figure("loss", 1.0, "nats")]);
        let mut session = start();
        session.case("b", "bad", Duration::ZERO, |_| anyhow::bail!("no")).unwrap();
        session.case("b", "good", Duration::ZERO, |_| figure()).unwrap();
        assert!(session.finish().is_err());
        let mut session = start();
        session.case("b", "bad", Duration::ZERO, |_| figure()).unwrap();
        session.case("b", "good", Duration::ZERO, |_| anyhow::bail!("no")).unwrap();
        assert!(session.finish().is_ok());
    }

    #[test]
    fn no_case_is_started_that_might_not_be_over_in_time() {
        let mut session = Session::start(None, everything(), true, Some(0.1)).unwrap();
        session.case("b", "long", Duration::from_secs(400), |_| anyhow::bail!("it was started")).unwrap();
        assert_eq!(session.postponed, ["b: long"]);
        assert!(session.finish().is_ok());
    }
}
