//! A preparation with its progress: a bar on a terminal, lines elsewhere.

use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{BinaryBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep};

use super::{Data, open};
use crate::agent::StopSignal;
use crate::data::{DataError, Dataset, Work, WorkDone};

/// How often a bar moves: often enough to look alive.
const BAR_INTERVAL: Duration = Duration::from_millis(250);
/// How often a line is written where there is no bar: seldom enough for a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// What is half done when a stop is asked for has so long to come to an end of its own: most records take a fraction of it.
const STOP_MAX: Duration = Duration::from_millis(700);

/// Prepares the data until it is done, or a signal asks for a stop.
pub(super) async fn prepare(data: Data) -> Result<(Dataset, WorkDone)> {
    let mut stop = StopSignal::listen()?;
    let work = Arc::new(Work::default());
    let items = if data.config.image.is_some() { "images" } else { "tokens" };
    let (teller, mut told) = oneshot::channel();
    let shared = Arc::clone(&work);
    let start = move || {
        // Nobody listens any longer only when this process ends.
        let _ = teller.send(open(&data, &shared));
    };
    std::thread::Builder::new().name("preparation".into()).spawn(start).context("start a thread")?;
    let mut progress = Progress::new(items)?;
    let mut moments = interval(BAR_INTERVAL);
    let result = loop {
        tokio::select! {
            result = &mut told => break result,
            _ = moments.tick() => progress.show(work.done(), Instant::now()),
            () = stop.asked() => {
                work.stop();
                break tokio::select! {
                    result = &mut told => result,
                    // A long record, or a disk that does not answer; and whoever asks twice does not wait at all.
                    () = sleep(STOP_MAX) => Ok(Err(DataError::Stopped.into())),
                    () = stop.asked() => Ok(Err(DataError::Stopped.into())),
                };
            }
        }
    };
    progress.bar.finish_and_clear();
    Ok((result.context("the preparation came to no end")??, work.done()))
}

struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    next_line: Instant,
    pace: Pace,
    /// What is made.
    items: &'static str,
}

impl Progress {
    fn new(items: &'static str) -> Result<Self> {
        let style =
            ProgressStyle::with_template("preparing {wide_bar} {binary_bytes}/{binary_total_bytes}\n{msg}");
        let bar = ProgressBar::new(0).with_style(style.context("lay out the progress")?);
        let is_terminal = std::io::stderr().is_terminal();
        let next_line = Instant::now() + LINE_INTERVAL;
        Ok(Self { bar, is_terminal, next_line, pace: Pace::default(), items })
    }

    fn show(&mut self, done: WorkDone, now: Instant) {
        let message = Message { done, items: self.items, left: self.pace.left(done, now) };
        if self.is_terminal {
            self.bar.set_length(done.bytes);
            self.bar.set_position(done.read_bytes);
            self.bar.set_message(message.to_string());
        } else if now >= self.next_line {
            self.next_line = now + LINE_INTERVAL;
            let (read, all) = (BinaryBytes(done.read_bytes), BinaryBytes(done.bytes));
            tracing::info!("preparing data: {read} of {all} read, {message}");
        }
    }
}

/// What is said beside the bytes.
struct Message {
    done: WorkDone,
    /// What is made.
    items: &'static str,
    left: Option<Duration>,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkDone { files, files_done, hashed_bytes, read_bytes, items, .. } = self.done;
        write!(
            f,
            "{} of {} files, {} {}",
            HumanCount(files_done),
            HumanCount(files),
            HumanCount(items),
            self.items
        )?;
        if hashed_bytes > read_bytes {
            write!(f, ", {} hashed", BinaryBytes(hashed_bytes))?;
        }
        self.left.map_or(Ok(()), |left| write!(f, ", {} left", HumanDuration(left)))
    }
}

/// How fast files are read.
#[derive(Default)]
struct Pace {
    first: Option<Instant>,
}

impl Pace {
    /// What the rest takes at the pace so far; none before there is one. What was prepared before took no time, and does not count.
    fn left(&mut self, done: WorkDone, now: Instant) -> Option<Duration> {
        let read = done.read_bytes.saturating_sub(done.found_bytes);
        if read == 0 {
            self.first = Some(now);
            return None;
        }
        let took = now - *self.first.get_or_insert(now);
        let rest = done.bytes.saturating_sub(done.read_bytes);
        Duration::try_from_secs_f64(took.as_secs_f64() * rest as f64 / read as f64)
            .ok()
            .filter(|_| !took.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_left_takes_as_long_for_each_byte_as_what_was_read() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut done = WorkDone { bytes: 1000, read_bytes: 200, found_bytes: 200, ..WorkDone::default() };
        assert_eq!(pace.left(done, start), None);
        done.read_bytes = 400;
        assert_eq!(pace.left(done, start + Duration::from_secs(10)), Some(Duration::from_secs(30)));
        done.read_bytes = 1000;
        assert_eq!(pace.left(done, start + Duration::from_secs(40)), Some(Duration::ZERO));
    }

    #[test]
    fn a_line_says_files_tokens_what_is_only_hashed_and_what_is_left() {
        let done = WorkDone {
            files: 1200,
            files_done: 7,
            hashed_bytes: 5 << 20,
            read_bytes: 1 << 20,
            items: 12_345,
            ..WorkDone::default()
        };
        let message = Message { done, items: "tokens", left: Some(Duration::from_secs(90)) }.to_string();
        assert_eq!(message, "7 of 1,200 files, 12,345 tokens, 5.00 MiB hashed, 2 minutes left");
    }
}
