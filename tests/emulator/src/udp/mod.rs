//! UDP relays. Each has a listening port whose datagrams cross one link to a target, and whose replies cross
//! another back. Before and after those they cross the links of the client's own site, if any.

mod counters;
mod egress;
mod engine;
mod flows;
mod port;
mod receiver;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use self::counters::Counters;
use self::engine::{AddRelay, Engine};
pub use self::flows::FLOWS_MAX;
use self::port::UdpPort;
use super::Link;

/// Relays queued for the thread, which takes them all on each wake-up; more accumulate only if it has died.
const COMMANDS_MAX: usize = 256;

/// Addresses and links of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address to forward datagrams to.
    pub target: SocketAddr,
    /// From clients to the target.
    pub forward: Link,
    /// From the target to clients.
    pub reverse: Link,
    /// Clients with their own links: their datagrams cross those first, and replies cross them last.
    pub clients: Arc<BTreeMap<SocketAddr, Access>>,
}

/// Links between a site and the rest of the world.
#[derive(Clone, Debug)]
pub struct Access {
    /// To the site.
    pub into: Link,
    /// From the site.
    pub out_of: Link,
    /// Unreachable targets.
    pub not_to: NotTo,
}

/// Targets without a route in either direction. Clones share the set.
#[derive(Clone, Debug, Default)]
pub struct NotTo(Arc<Mutex<BTreeSet<SocketAddr>>>);

impl NotTo {
    /// Replaces the targets.
    pub fn set(&self, targets: impl IntoIterator<Item = SocketAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = targets.into_iter().collect();
    }

    fn contains(&self, target: SocketAddr) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&target)
    }
}

/// Errors outside the links, over all relays of a thread. All zero in a healthy emulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RelayStats {
    /// Datagrams of clients beyond the limit of [`FLOWS_MAX`].
    pub flows_refused: u64,
    /// Datagrams from other addresses than the target's, at a socket that only the target should know.
    pub strangers: u64,
    /// Datagrams refused by the kernel.
    pub send_failures: u64,
}

/// Any number of UDP relays on one own thread. Dropping it ends them.
#[derive(Debug)]
pub struct Relays {
    commands: SyncSender<AddRelay>,
    wake: Arc<OwnedFd>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Relays {
    /// Starts the thread, without relays.
    ///
    /// # Errors
    /// The kernel grants no event file descriptor or no thread.
    pub fn start() -> io::Result<Self> {
        let (commands, receiver) = sync_channel(COMMANDS_MAX);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let counters = Arc::new(Counters::default());
        let engine = Engine::new(receiver, Arc::clone(&wake), Arc::clone(&counters))?;
        let thread = std::thread::Builder::new().name("wan-relays".to_owned()).spawn(move || {
            if let Err(error) = engine.run() {
                tracing::error!(%error, "the relays have stopped");
            }
        })?;
        Ok(Self { commands, wake, counters, thread: Some(thread) })
    }

    /// Adds a relay and returns its listening address.
    ///
    /// # Errors
    /// The address cannot be bound, or the thread has ended.
    pub fn add(&self, config: RelayConfig) -> io::Result<SocketAddr> {
        let port = UdpPort::bind(config.listen)?;
        let address = port.local_addr()?;
        self.commands.try_send(AddRelay { config, port }).map_err(|error| match error {
            TrySendError::Full(_) => io::Error::other("too many relays are waiting to start"),
            TrySendError::Disconnected(_) => io::Error::other("the relays have stopped"),
        })?;
        self.wake()?;
        Ok(address)
    }

    /// Returns the errors outside the links so far.
    pub fn stats(&self) -> RelayStats {
        self.counters.read()
    }

    fn wake(&self) -> io::Result<()> {
        rustix::io::write(&*self.wake, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        // Replacing the sender closes the channel, which ends the thread.
        self.commands = sync_channel(0).0;
        if let (Ok(()), Some(thread)) = (self.wake(), self.thread.take()) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
