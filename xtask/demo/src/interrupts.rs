//! Signals as events between two polls of the run.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Interval between two polls of the coordinator, short enough for a smooth progress bar.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The user's interrupts.
pub struct Interrupts(Receiver<()>);

impl Interrupts {
    /// Turns signals into events from now on, so that the processes end in order.
    pub fn watch() -> Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watch for signals")?;
        thread::spawn(move || {
            for _ in &mut signals {
                // A full channel already holds an unread interrupt; one is enough.
                let _ = sender.try_send(());
            }
        });
        Ok(Self(receiver))
    }

    /// Waits until the next poll.
    ///
    /// # Errors
    /// Returns an error if the user interrupts.
    pub fn pause(&self) -> Result<()> {
        match self.0.recv_timeout(POLL_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => bail!("interrupted; all processes were ended"),
        }
    }
}
