//! A link that threads share and change while packets run through it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{ConfigError, LinkConfig, LinkState, LinkStats, Verdict, clock};

/// A handle to one direction of a link. Clones are the same link, so any number of relays may share it, as the
/// machines of a site share its WAN.
#[derive(Clone, Debug)]
pub struct Link {
    name: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    state: LinkState,
    /// The link's own generator: what one link loses does not depend on the traffic of another.
    rng: ChaCha8Rng,
    /// Packets that somebody on the way has kept.
    heard: Vec<Box<[u8]>>,
    /// Bytes of which that one still keeps.
    hears_bytes: usize,
}

impl Link {
    /// An idle, healthy link. The same `seed`, `name` and sequence of packets give the same losses.
    ///
    /// # Errors
    /// A configuration that does not pass [`LinkConfig::validated`].
    pub fn new(name: &str, config: LinkConfig, seed: u64) -> Result<Self, ConfigError> {
        let rng = ChaCha8Rng::seed_from_u64(seed ^ fnv1a(name));
        let inner =
            Inner { state: LinkState::new(config.validated()?), rng, heard: Vec::new(), hears_bytes: 0 };
        Ok(Self { name: name.into(), inner: Arc::new(Mutex::new(inner)) })
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The link as it is now.
    pub fn config(&self) -> LinkConfig {
        self.lock().state.config().clone()
    }

    /// Changes the link, see [`LinkState::reconfigure`].
    ///
    /// # Errors
    /// A configuration that does not pass [`LinkConfig::validated`]; the link then stays as it is.
    pub fn reconfigure(&self, config: LinkConfig) -> Result<(), ConfigError> {
        let config = config.validated()?;
        self.lock().state.reconfigure(clock::now(), config);
        Ok(())
    }

    /// Drops everything that is offered from now on. What is on its way still arrives.
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

    /// The counters so far.
    pub fn stats(&self) -> LinkStats {
        self.lock().state.stats()
    }

    /// From now on, somebody on the way keeps the packets that reach it, lost ones too, as long as those have no more bytes in all.
    pub fn listen(&self, bytes_max: usize) {
        let inner = &mut *self.lock();
        (inner.heard, inner.hears_bytes) = (Vec::new(), bytes_max);
    }

    /// The packets that were kept, which are taken away: of UDP, what a datagram holds.
    #[must_use]
    pub fn heard(&self) -> Vec<Box<[u8]>> {
        std::mem::take(&mut self.lock().heard)
    }

    /// Settles the fate of a packet that reaches the link now, with so many bytes of headers around it.
    pub(super) fn offer(&self, now: std::time::Duration, packet: &[u8], header_bytes: u64) -> Verdict {
        let inner = &mut *self.lock();
        if let Some(left) = inner.hears_bytes.checked_sub(packet.len()) {
            inner.hears_bytes = left;
            inner.heard.push(packet.into());
        }
        inner.state.offer(now, packet.len() as u64 + header_bytes, &mut inner.rng)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The state is consistent between any two statements, so a panic elsewhere leaves nothing to mend.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits: spreads names over seeds the same way on every machine.
fn fnv1a(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
