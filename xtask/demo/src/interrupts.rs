//! Signals, as events between two looks at the run.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How often the coordinator is asked how it goes: often enough for a bar to look alive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The user's wishes to stop.
pub struct Interrupts(Receiver<()>);

impl Interrupts {
    /// From here on a signal is an event, so that the processes are ended in an orderly way.
    pub fn watch() -> Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watch for signals")?;
        thread::spawn(move || {
            for _ in &mut signals {
                // A full channel holds an interrupt that was not looked at yet; one is enough.
                let _ = sender.try_send(());
            }
        });
        Ok(Self(receiver))
    }

    /// Waits for the next moment to look.
    ///
    /// # Errors
    /// The user wishes to stop.
    pub fn pause(&self) -> Result<()> {
        match self.0.recv_timeout(POLL_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => bail!("interrupted; all processes were ended"),
        }
    }
}
