//! A preparation with its progress: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{BinaryBytes, HumanCount, ProgressBar, ProgressStyle};
use tokio::sync::oneshot;
use tokio::time::{Instant, interval};

use super::{Data, open};
use crate::agent::StopSignal;
use crate::data::{DataError, Dataset, Work, WorkDone};

/// How often a bar moves: often enough to look alive.
const BAR_INTERVAL: Duration = Duration::from_millis(250);
/// How often a line is written where there is no bar: seldom enough for a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Prepares the data until it is done, or a signal asks for a stop.
pub(super) async fn prepare(data: Data) -> Result<(Dataset, WorkDone)> {
    let mut stop = StopSignal::listen()?;
    let work = Arc::new(Work::default());
    let (teller, mut told) = oneshot::channel();
    let shared = Arc::clone(&work);
    let start = move || {
        // Nobody listens any longer only when this process ends.
        let _ = teller.send(open(&data, &shared));
    };
    std::thread::Builder::new().name("preparation".into()).spawn(start).context("start a thread")?;
    let mut progress = Progress::new()?;
    let (mut moments, mut asked) = (interval(BAR_INTERVAL), 0);
    let result = loop {
        tokio::select! {
            result = &mut told => break result,
            _ = moments.tick() => progress.show(work.done(), Instant::now()),
            () = stop.asked() => {
                asked += 1;
                // Whoever asks twice does not wait for what is half done.
                ensure!(asked == 1, DataError::Stopped);
                work.stop();
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
}

impl Progress {
    fn new() -> Result<Self> {
        let template = "preparing {wide_bar} {binary_bytes}/{binary_total_bytes}, {msg}, {eta} left";
        let style = ProgressStyle::with_template(template).context("lay out the progress")?;
        let bar = ProgressBar::new(0).with_style(style);
        Ok(Self {
            bar,
            is_terminal: std::io::stderr().is_terminal(),
            next_line: Instant::now() + LINE_INTERVAL,
        })
    }

    fn show(&mut self, done: WorkDone, now: Instant) {
        let message = format!("{} tokens", HumanCount(done.tokens));
        if self.is_terminal {
            self.bar.set_length(done.bytes);
            self.bar.set_position(done.read_bytes);
            self.bar.set_message(message);
        } else if now >= self.next_line {
            self.next_line = now + LINE_INTERVAL;
            let (read, all) = (BinaryBytes(done.read_bytes), BinaryBytes(done.bytes));
            tracing::info!("preparing data: {read} of {all} read, {message}");
        }
    }
}
