//! A link shared by threads, and changeable while packets pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{ConfigError, LinkConfig, LinkState, LinkStats, Verdict, clock};

/// A handle to one direction of a link. Clones share it, so any number of relays can use it, like the
/// machines of a site share its WAN.
#[derive(Clone, Debug)]
pub struct Link {
    name: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    state: LinkState,
    /// The link's own generator: its losses do not depend on the traffic of other links.
    rng: ChaCha8Rng,
    /// Packets captured by the observer.
    heard: Vec<Box<[u8]>>,
    /// Bytes that it may still capture.
    hears_bytes: usize,
}

impl Link {
    /// Creates an idle, healthy link. The same `seed`, `name` and sequence of packets give the same losses.
    ///
    /// # Errors
    /// The configuration does not pass [`LinkConfig::validated`].
    pub fn new(name: &str, config: LinkConfig, seed: u64) -> Result<Self, ConfigError> {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name));
        let inner =
            Inner { state: LinkState::new(config.validated()?), rng, heard: Vec::new(), hears_bytes: 0 };
        Ok(Self { name: name.into(), inner: Arc::new(Mutex::new(inner)) })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current configuration.
    pub fn config(&self) -> LinkConfig {
        self.lock().state.config().clone()
    }

    /// Changes the link, see [`LinkState::reconfigure`].
    ///
    /// # Errors
    /// The configuration does not pass [`LinkConfig::validated`]; the link is then unchanged.
    pub fn reconfigure(&self, config: LinkConfig) -> Result<(), ConfigError> {
        let config = config.validated()?;
        self.lock().state.reconfigure(clock::now(), config);
        Ok(())
    }

    /// Drops all packets offered from now on. Packets in flight still arrive.
    pub fn partition(&self) {
        self.lock().state.partition();
    }

    /// Ends a partition.
    pub fn heal(&self) {
        self.lock().state.heal();
    }

    /// Whether the link is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.lock().state.is_partitioned()
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> LinkStats {
        self.lock().state.stats()
    }

    /// Captures packets that reach the link from now on, including lost ones, up to this total size.
    pub fn listen(&self, bytes_max: usize) {
        let inner = &mut *self.lock();
        (inner.heard, inner.hears_bytes) = (Vec::new(), bytes_max);
    }

    /// Returns and removes the captured packets; of UDP, the datagrams' contents.
    #[must_use]
    pub fn heard(&self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.lock().heard)
    }

    /// Decides the fate of a packet that reaches the link now, with this many bytes of headers around it.
    pub(super) fn offer(&self, now: std::time::Duration, packet: &[u8], header_bytes: u64) -> Verdict {
        let inner = &mut *self.lock();
        if let Some(left) = inner.hears_bytes.checked_sub(packet.len()) {
            inner.hears_bytes = left;
            inner.heard.push(packet.into());
        }
        inner.state.offer(now, packet.len() as u64 + header_bytes, &mut inner.rng)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is consistent between any two statements, so a panic elsewhere needs no repair.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits: maps names to seeds equally on every machine.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
