//! Unauthenticated peers: bounds in total and per address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use quinn::{Connection, ConnectionError, Incoming};
use tokio::time::{Instant, timeout_at};

/// Divisor of an address's share: one machine that takes all it can leaves three quarters to others.
const SHARES: usize = 4;

/// A number of slots, of which one address may have a quarter; for IPv6 a /64, as one machine has all of it.
/// Clones share them.
#[derive(Clone, Debug)]
pub struct Strangers {
    places: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Slots per address.
    by_address: BTreeMap<IpAddr, usize>,
}

/// A slot, until dropped.
#[derive(Debug)]
pub struct Admission {
    address: IpAddr,
    taken: Arc<Mutex<Taken>>,
}

/// Reasons why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// All slots available to it are taken.
    #[error("too many unauthenticated connections")]
    Busy,
    /// It must prove its address first; not an error.
    #[error("the peer was asked to prove its address")]
    Retried,
    /// It timed out.
    #[error("the handshake took too long")]
    Slow,
    /// It failed.
    #[error("the handshake failed: {0}")]
    Failed(#[from] ConnectionError),
}

impl Strangers {
    /// Creates this many slots.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self { places, taken: Arc::default() }
    }

    /// Takes a slot, if one is free for this address.
    #[must_use]
    pub fn enter(&self, address: IpAddr) -> Option<Admission> {
        let address = network_of(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.places {
            return None;
        }
        let of_address = taken.by_address.entry(address).or_default();
        if *of_address >= self.places.div_ceil(SHARES) {
            return None;
        }
        *of_address += 1;
        taken.all += 1;
        Some(Admission { address, taken: Arc::clone(&self.taken) })
    }

    /// Completes a handshake. Once an eighth of all slots are taken, peers must prove their address first
    /// (RFC 9000, section 8.1.2), so forged addresses take no slots. The peer keeps the slot until it is
    /// dropped.
    ///
    /// # Errors
    /// [`HandshakeError`]; no connection exists then.
    pub async fn shake_hands(
        &self,
        incoming: Incoming,
        deadline: Instant,
    ) -> Result<(Connection, Admission), HandshakeError> {
        let address = incoming.remote_address().ip();
        if self.are_many() && incoming.may_retry() && !incoming.remote_address_validated() {
            return match incoming.retry() {
                Ok(()) => Err(HandshakeError::Retried),
                Err(error) => {
                    error.into_incoming().refuse();
                    Err(HandshakeError::Busy)
                }
            };
        }
        let Some(place) = self.enter(address) else {
            incoming.refuse();
            return Err(HandshakeError::Busy);
        };
        let connection =
            timeout_at(deadline, incoming.accept()?).await.map_err(|_| HandshakeError::Slow)??;
        Ok((connection, place))
    }

    /// Half of an address's share: peers with forged addresses take no more than others.
    fn are_many(&self) -> bool {
        let all = self.taken.lock().unwrap_or_else(PoisonError::into_inner).all;
        all >= self.places / (2 * SHARES)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(of_address) = taken.by_address.get_mut(&self.address) {
            *of_address -= 1;
            if *of_address == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

/// Returns the network that one machine may have entirely.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_takes_a_quarter_and_all_together_no_more_than_there_are() {
        let strangers = Strangers::new(8);
        let crowd = |address: &str| -> Vec<Admission> {
            std::iter::from_fn(|| strangers.enter(from(address))).take(100).collect()
        };
        let first = crowd("192.0.2.1");
        assert_eq!(first.len(), 2);
        assert!(strangers.enter(from("::ffff:192.0.2.1")).is_none(), "the same address, as IPv6 has it");
        let others: Vec<_> = ["192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"].map(crowd).into();
        assert!(others.iter().all(|places| places.len() == 2));
        assert!(strangers.enter(from("192.0.2.9")).is_none(), "all places are taken");
        drop(first);
        assert!(strangers.enter(from("2001:db8::ffff:1")).is_none(), "of a network that has its share");
        assert!(strangers.enter(from("192.0.2.9")).is_some());
        drop(others);
        assert!(strangers.taken.lock().unwrap().by_address.is_empty());
    }
}
