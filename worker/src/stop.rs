//! Stop requests of the user or the machine.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Counts SIGINT and SIGTERM from the start of the process, so that none is missed.
pub(crate) struct StopSignal {
    count: watch::Receiver<u32>,
    heeded: u32,
}

impl StopSignal {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let (counter, count) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = counter.closed() => return,
                }
                counter.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { count, heeded: 0 })
    }

    /// Resolves once per signal. Cancel-safe in a `select!`: no signal is lost.
    pub async fn asked(&mut self) {
        let heeded = self.heeded;
        if self.count.wait_for(|count| *count > heeded).await.is_err() {
            // The runtime is shutting down.
            return std::future::pending().await;
        }
        self.heeded += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn signals_that_come_while_nobody_waits_are_heeded_one_by_one() {
        let (counter, count) = watch::channel(0);
        let mut stop = StopSignal { count, heeded: 0 };
        counter.send_modify(|count| *count += 2);
        stop.asked().await;
        stop.asked().await;
        let third = tokio::select! {
            biased;
            () = stop.asked() => true,
            () = std::future::ready(()) => false,
        };
        assert!(!third);
    }
}
