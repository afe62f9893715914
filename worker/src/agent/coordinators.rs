//! The coordinator's possible addresses: one, or those of several with failover.

use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use longhaul_proto::control::NotLeader;

/// Limit on remembered addresses; standby coordinators may add some.
const ADDRESSES_MAX: usize = 16;

/// Addresses as HOST:PORT, tried one at a time.
#[derive(Debug)]
pub struct Coordinators(Mutex<Known>);

#[derive(Debug)]
struct Known {
    addresses: Vec<String>,
    at: usize,
}

impl Coordinators {
    /// Returns the address to try: the last one that answered, until the search moves on.
    pub fn current(&self) -> String {
        let known = self.lock();
        known.addresses[known.at].clone()
    }

    /// Returns the number of addresses.
    pub fn count(&self) -> usize {
        self.lock().addresses.len()
    }

    /// Moves to the leader if the last coordinator named it, else to the next address.
    pub fn go_on(&self, waits: Option<NotLeader>) {
        let mut known = self.lock();
        let leader = waits.and_then(|waits| waits.leader);
        let place = leader.as_ref().and_then(|leader| known.addresses.iter().position(|a| a == leader));
        known.at = match (leader, place) {
            (_, Some(place)) if place != known.at => place,
            (Some(leader), None) if known.addresses.len() < ADDRESSES_MAX => {
                known.addresses.push(leader);
                known.addresses.len() - 1
            }
            _ => (known.at + 1) % known.addresses.len(),
        };
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // A panic of another thread leaves this state consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromStr for Coordinators {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut addresses: Vec<String> = Vec::new();
        for address in text.split(',').map(str::trim) {
            ensure!(
                !address.is_empty(),
                "{text:?} is not HOST:PORT[,HOST:PORT], as `coordinator up` prints it: an address is missing"
            );
            if !addresses.iter().any(|known| known == address) {
                addresses.push(address.to_owned());
            }
        }
        ensure!(
            addresses.len() <= ADDRESSES_MAX,
            "{} coordinators are named; at most {ADDRESSES_MAX} are tried",
            addresses.len()
        );
        Ok(Self(Mutex::new(Known { addresses, at: 0 })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(leader: &str) -> Option<NotLeader> {
        Some(NotLeader { leader: Some(leader.to_owned()) })
    }

    #[test]
    fn addresses_are_tried_in_turn_and_a_leader_that_is_named_comes_first() {
        let coordinators: Coordinators = "a:1, b:1,c:1,a:1".parse().unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(coordinators.current());
            coordinators.go_on(None);
        }
        assert_eq!(seen, ["a:1", "b:1", "c:1", "a:1"]);
        assert_eq!(coordinators.current(), "b:1");
        coordinators.go_on(waits("a:1"));
        assert_eq!(coordinators.current(), "a:1");
        coordinators.go_on(waits("d:1"));
        assert_eq!((coordinators.current().as_str(), coordinators.count()), ("d:1", 4));
        // A coordinator that names itself is not asked twice in a row.
        coordinators.go_on(waits("d:1"));
        assert_eq!(coordinators.current(), "a:1");
    }

    #[test]
    fn no_more_addresses_are_learnt_than_are_kept() {
        let coordinators: Coordinators = "a:1".parse().unwrap();
        for port in 0..100 {
            coordinators.go_on(waits(&format!("b:{port}")));
        }
        assert_eq!(coordinators.count(), ADDRESSES_MAX);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for wrong in ["", "a:1,", ",a:1"] {
            assert!(
                wrong.parse::<Coordinators>().unwrap_err().to_string().contains("HOST:PORT"),
                "{wrong:?}"
            );
        }
        let many: Vec<String> = (0..17).map(|port| format!("a:{port}")).collect();
        assert!(many.join(",").parse::<Coordinators>().is_err());
    }
}
