//! `points.jsonl`, line by line.

use std::io::{self, BufRead, Read as _};

use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::news::Open;
use super::note::{FORMAT, History, LINKS_MAX, Meta, ROUNDS_MAX, RetainedHistory, SAMPLES_MAX, SITES_MAX};
use super::points::{RoundPoint, Sample};
use super::thinned::Thinned;

/// No line is longer, in bytes: a sample with all sites and ways has a few thousand.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Name of a site whose line cannot be read.
const LOST: &str = "(name lost)";

/// A line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// First: of which run.
    Run(Meta),
    /// Second, where the file was written anew: how many samples, and rounds, a point stands for.
    PerPoint(u64, u64),
    /// A site has this place.
    Site(usize, String),
    /// A way has it, from and to.
    Way(usize, String, String),
    /// A sample that is kept.
    Sample(Sample),
    /// A round that is kept.
    Round(RoundPoint),
}

/// Content of a file's lines.
#[derive(Default)]
pub struct Lines {
    sites: Vec<Option<String>>,
    ways: Vec<Option<(String, String)>>,
    per_point: Option<(u64, u64)>,
    samples: Vec<Sample>,
    rounds: Vec<RoundPoint>,
    /// Whether a whole line makes no sense. One without an end was cut short by a crash, which is as it should be.
    pub is_damaged: bool,
}

/// The next line without its end, and whether it has one; none at the end of the file. Of one that is too long, there is nothing.
fn next(from: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, bool)>> {
    let mut line = Vec::new();
    let mut rest = from.by_ref().take(LINE_BYTES_MAX);
    if rest.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let is_too_long = rest.limit() == 0 && line.last() != Some(&b'\n');
    if is_too_long {
        line.clear();
        return Ok(Some((line, from.skip_until(b'\n')? > 0)));
    }
    Ok(Some(match line.pop() {
        Some(b'\n') => (line, true),
        last => {
            line.extend(last);
            (line, false)
        }
    }))
}

/// Reads the run of the file.
///
/// # Errors
/// The system's error, or the fault found.
pub fn first(from: &mut impl BufRead) -> io::Result<Result<Meta, String>> {
    let (line, _) = next(from)?.unwrap_or_default();
    Ok(match serde_json::from_slice(&line) {
        Ok(Line::Run(meta)) if meta.format == FORMAT => Ok(meta),
        Ok(Line::Run(meta)) => Err(format!("its format is {}, and this is {FORMAT}", meta.format)),
        Ok(_) => Err("it does not begin with a run".to_owned()),
        Err(error) => Err(error.to_string()),
    })
}

impl Lines {
    /// Reads all lines after the first one.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let mut lines = Self::default();
        while let Some((line, is_whole)) = next(from)? {
            match serde_json::from_slice(&line) {
                Ok(line) => lines.is_damaged |= !lines.take(line),
                Err(_) => lines.is_damaged |= is_whole,
            }
        }
        Ok(lines)
    }

    /// Whether there is room for it, and it makes sense.
    fn take(&mut self, line: Line) -> bool {
        match line {
            Line::PerPoint(samples, rounds) => self.per_point = Some((samples, rounds)),
            Line::Site(at, site) if at < SITES_MAX => put(&mut self.sites, at, site),
            Line::Way(at, from, to) if at < LINKS_MAX => put(&mut self.ways, at, (from, to)),
            Line::Sample(sample) if self.samples.len() < SAMPLES_MAX => self.samples.push(sample),
            Line::Round(round) if self.rounds.len() < ROUNDS_MAX => self.rounds.push(round),
            Line::Run(_) | Line::Site(..) | Line::Way(..) | Line::Sample(_) | Line::Round(_) => return false,
        }
        true
    }

    /// Builds the history from the lines and from values stored elsewhere: open points, which count where they are newer, the newest samples, and
    /// activity.
    pub fn history(
        self,
        meta: Meta,
        open: Open,
        recent: Vec<Sample>,
        activity: Activity,
        now_ms: u64,
    ) -> History {
        let (per_sample, per_round) = self.per_point.unwrap_or((1, 1));
        let last =
            (self.samples.last().map(|sample| sample.at_ms), self.rounds.last().map(|round| round.round));
        let sample = open.sample.filter(|(sample, _)| Some(sample.at_ms) > last.0);
        let round = open.round.filter(|(round, _)| Some(round.round) > last.1);
        let named = |site: Option<String>| site.unwrap_or_else(|| LOST.to_owned());
        let way = |way: Option<(String, String)>| way.unwrap_or_else(|| (LOST.to_owned(), LOST.to_owned()));
        let kept = RetainedHistory {
            meta,
            sites: self.sites.into_iter().map(named).collect(),
            ways: self.ways.into_iter().map(way).collect(),
            samples: Thinned::taken_up(self.samples, per_sample, sample, SAMPLES_MAX),
            rounds: Thinned::taken_up(self.rounds, per_round, round, ROUNDS_MAX),
            recent,
            activity,
        };
        History::taken_up(kept, now_ms)
    }
}

/// Puts one at its place, whatever of those before it is there.
fn put<T>(list: &mut Vec<Option<T>>, at: usize, one: T) {
    if list.len() <= at {
        list.resize_with(at + 1, || None);
    }
    list[at] = Some(one);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_left_out_and_those_after_it_are_read() {
        let long = "x".repeat(3 * LINE_BYTES_MAX as usize);
        let text = format!(
            "{{\"site\":[0,\"north\"]}}\n{{\"site\":[1,\"{long}\"]}}\n{{\"site\":[2,\"south\"]}}\n{{\"si"
        );
        let lines = Lines::read(&mut text.as_bytes()).unwrap();
        assert_eq!(lines.sites, [Some("north".to_owned()), None, Some("south".to_owned())]);
        assert!(lines.is_damaged, "a whole line was left out");
        let cut_short = Lines::read(&mut "{\"site\":[0,\"north\"]}\n{\"site\":[1,\"so".as_bytes()).unwrap();
        assert!(cut_short.sites.len() == 1 && !cut_short.is_damaged);
    }
}
