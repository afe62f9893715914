//! Packets in flight, ordered by arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue of packets by arrival time; those of the same time keep their order of insertion.
///
/// It is unlimited: each link bounds its packets by its queue and its delay
/// ([`super::LinkConfig::validated`]).
#[derive(Debug)]
pub(super) struct Departures<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    next_sequence: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Duration,
    sequence: u64,
    packet: T,
}

impl<T> Departures<T> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), next_sequence: 0 }
    }

    pub(super) fn push(&mut self, at: Duration, packet: T) {
        self.heap.push(Reverse(Entry { at, sequence: self.next_sequence, packet }));
        self.next_sequence += 1;
    }

    /// Returns the arrival time of the next packet.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Removes the next packet that has arrived by `now`.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<T> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.packet)
    }
}

impl<T> Entry<T> {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.sequence)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_by_time_and_within_an_instant_in_order() {
        let mut departures = Departures::new();
        for (at_ms, packet) in [(2, "b1"), (1, "a"), (2, "b2"), (9, "late")] {
            departures.push(Duration::from_millis(at_ms), packet);
        }
        let now = Duration::from_millis(2);
        let due: Vec<&str> = std::iter::from_fn(|| departures.pop_due(now)).collect();
        assert_eq!(due, ["a", "b1", "b2"]);
        assert_eq!(departures.next_at(), Some(Duration::from_millis(9)));
    }
}
