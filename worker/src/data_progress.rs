//! Progress of work on data: a status line on a terminal, log lines elsewhere.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{BinaryBytes, HumanCount, HumanDuration};
use longhaul_common::config::DataConfig;
use longhaul_common::terminal::{foot, gauge};
use longhaul_data::WorkDone;
use longhaul_data::counted::counted;
use tokio::time::Instant;

/// Refresh interval of the status line.
pub(crate) const FOOT_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between log lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Far {
    /// Bytes done, including `found`.
    pub(crate) done: u64,
    /// Bytes in total.
    pub(crate) all: u64,
    /// Bytes done earlier, which took no time.
    pub(crate) found: u64,
    /// Further text.
    pub(crate) more: String,
}

impl Far {
    /// Returns the name of the items that a run's data consists of.
    pub(crate) fn items_of(config: &DataConfig) -> &'static str {
        match (&config.image, &config.conversations, &config.classification) {
            (Some(_), ..) => "images",
            (None, Some(_), _) => "sequences",
            (None, None, Some(_)) => "texts",
            (None, None, None) => "tokens",
        }
    }

    /// The progress of a preparation of `items`.
    pub(crate) fn of_preparing(done: WorkDone, items: &str) -> Self {
        let WorkDone { files, files_done, bytes, hashed_bytes, prepared_bytes, found_bytes, .. } = done;
        let (files_done, files) = (HumanCount(files_done), counted(files, "file"));
        let mut more = format!("{files_done} of {files}, {} {items}", HumanCount(done.items));
        if hashed_bytes > prepared_bytes {
            more += &format!(", {} hashed", BinaryBytes(hashed_bytes));
        }
        Self { done: prepared_bytes, all: bytes, found: found_bytes, more }
    }
}

/// The progress display. Dropping it clears the status line.
pub(crate) struct Progress {
    next_line: Instant,
    pace: Pace,
    /// The activity, such as preparing data.
    doing: &'static str,
}

impl Progress {
    /// Creates a display without output.
    pub(crate) fn new(doing: &'static str) -> Self {
        Self { next_line: Instant::now() + LINE_INTERVAL, pace: Pace::default(), doing }
    }

    /// Shows the status line on a terminal; elsewhere writes a log line when due.
    pub(crate) fn show(&mut self, far: &Far, now: Instant) {
        let pace = self.pace.at(far, now);
        if foot().is_there() {
            foot().show(&format!("{} {} {}", self.doing, gauge(far.done, far.all), Message { far, pace }));
        } else if let Some(line) = self.line(far, pace, now) {
            tracing::info!("{line}");
        }
    }

    /// Returns the next log line when due.
    fn line(&mut self, far: &Far, pace: Option<At>, now: Instant) -> Option<String> {
        if now < self.next_line {
            return None;
        }
        self.next_line = now + LINE_INTERVAL;
        Some(format!("{}: {}", self.doing, Message { far, pace }))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        foot().show("");
    }
}

/// Shows the progress of an operation.
pub(crate) fn watch<T>(
    doing: &'static str,
    far: impl Fn() -> Far + Send,
    run: impl FnOnce() -> T,
) -> Result<T> {
    let mut progress = Progress::new(doing);
    thread::scope(|scope| {
        let (runs, ended) = channel::<()>();
        let show = move || {
            while ended.recv_timeout(FOOT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                progress.show(&far(), Instant::now());
            }
        };
        thread::Builder::new()
            .name("progress".into())
            .spawn_scoped(scope, show)
            .context("start a thread that shows the progress")?;
        let done = run();
        drop(runs);
        Ok(done)
    })
}

/// Progress, pace and further text.
struct Message<'a> {
    far: &'a Far,
    pace: Option<At>,
}

impl std::fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Far { done, all, more, .. } = self.far;
        let share = 100.0 * *done as f64 / (*all).max(1) as f64;
        write!(f, "{share:.1} % of {}", BinaryBytes(*all))?;
        if let Some(At { bytes_per_s, left }) = self.pace {
            write!(f, ", {}/s, {} left", BinaryBytes(bytes_per_s), HumanDuration(left))?;
        }
        write!(f, ", {more}")
    }
}

/// The pace of a task.
#[derive(Default)]
struct Pace {
    first: Option<Instant>,
}

/// The pace at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    bytes_per_s: u64,
    /// Estimated remaining time at this pace.
    left: Duration,
}

impl Pace {
    /// Returns the average pace; `None` before any progress. Bytes done earlier do not count.
    fn at(&mut self, far: &Far, now: Instant) -> Option<At> {
        let done = far.done.saturating_sub(far.found);
        if done == 0 {
            self.first = Some(now);
            return None;
        }
        let took_s = (now - *self.first.get_or_insert(now)).as_secs_f64();
        let rest = far.all.saturating_sub(far.done);
        let left = Duration::try_from_secs_f64(took_s * rest as f64 / done as f64).ok()?;
        (took_s > 0.0).then(|| At { bytes_per_s: (done as f64 / took_s) as u64, left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_left_takes_as_long_for_each_byte_as_what_was_read() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut far = Far { all: 1000, done: 200, found: 200, ..Far::default() };
        let mut at = |done: u64, second: u64| {
            far.done = done;
            pace.at(&far, start + Duration::from_secs(second))
        };
        assert_eq!(at(200, 0), None);
        assert_eq!(at(400, 10), Some(At { bytes_per_s: 20, left: Duration::from_secs(30) }));
        assert_eq!(at(1000, 40), Some(At { bytes_per_s: 20, left: Duration::ZERO }));
    }

    #[test]
    fn a_line_every_ten_seconds_says_the_share_what_is_done_the_rate_and_what_is_left() {
        let mut done = WorkDone {
            files: 1200,
            files_done: 7,
            bytes: 40 * MIB,
            hashed_bytes: 5 * MIB,
            items: 12_345,
            ..WorkDone::default()
        };
        let (mut progress, start) = (Progress::new("preparing data"), Instant::now());
        let mut line = |prepared_bytes: u64, second: u64| {
            done.prepared_bytes = prepared_bytes;
            let (far, now) = (Far::of_preparing(done, "tokens"), start + Duration::from_secs(second));
            let pace = progress.pace.at(&far, now);
            progress.line(&far, pace, now)
        };
        assert_eq!(line(0, 1), None);
        assert_eq!(
            line(MIB, 11).unwrap(),
            "preparing data: 2.5 % of 40.00 MiB, 102.40 KiB/s, 7 minutes left, 7 of 1,200 files, 12,345 tokens, 5.00 MiB hashed"
        );
        assert_eq!(line(5 * MIB, 20), None);
        let last = line(40 * MIB, 21).unwrap();
        assert!(
            last.starts_with("preparing data: 100.0 % of 40.00 MiB, ") && !last.contains("hashed"),
            "{last}"
        );
    }

    #[test]
    fn what_runs_is_looked_at_meanwhile_and_its_result_comes_back() {
        let (look, looked) = channel();
        let far = move || {
            // The receiver is dropped after the first look.
            let _ = look.send(());
            Far::default()
        };
        assert_eq!(watch("checking", far, || looked.recv().map(|()| 7)).unwrap(), Ok(7));
    }
}
