//! A preparation with progress, stopped by a signal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_data::{DataError, Dataset, Work, WorkDone};
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep};

use super::{Data, open};
use crate::data_progress::{FOOT_INTERVAL, Far, Progress};
use crate::stop::StopSignal;

/// Grace period for unfinished records after a stop request: most take a fraction of it.
const STOP_MAX: Duration = Duration::from_millis(700);

/// Prepares the data until completion or a stop signal.
pub(super) async fn prepare(data: Data) -> Result<(Dataset, WorkDone)> {
    let mut stop = StopSignal::listen()?;
    let work = Arc::new(Work::default());
    let items = Far::items_of(&data.config);
    let (teller, mut told) = oneshot::channel();
    let shared = Arc::clone(&work);
    let start = move || {
        // The receiver is dropped only when the process exits.
        let _ = teller.send(open(&data, &shared));
    };
    std::thread::Builder::new().name("preparation".into()).spawn(start).context("start a thread")?;
    let mut progress = Progress::new("preparing data");
    let mut moments = interval(FOOT_INTERVAL);
    let result = loop {
        tokio::select! {
            result = &mut told => break result,
            _ = moments.tick() => progress.show(&Far::of_preparing(work.done(), items), Instant::now()),
            () = stop.asked() => {
                work.stop();
                break tokio::select! {
                    result = &mut told => result,
                    // A long record or an unresponsive disk; a second stop request ends the wait at once.
                    () = sleep(STOP_MAX) => Ok(Err(DataError::Stopped.into())),
                    () = stop.asked() => Ok(Err(DataError::Stopped.into())),
                };
            }
        }
    };
    drop(progress);
    Ok((result.context("the preparation did not finish")??, work.done()))
}
