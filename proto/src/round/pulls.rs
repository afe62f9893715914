//! Results that a member fetches from their holders.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{FragmentId, Round, WorkerId};

use crate::control::message::Hash;

/// Maximum pulls in flight, of results of any size: enough to fill a link with fragments of a megabyte, and
/// few enough not to overload a peer when all catch up.
pub const PULLS_IN_FLIGHT_MAX: usize = 64;

/// Maximum pulls in flight of small results, by the sizes received so far: with a round trip of 50 ms, ten
/// thousand arrive per second.
pub const SMALL_PULLS_IN_FLIGHT_MAX: usize = 512;

/// Maximum total length of results in flight.
const IN_FLIGHT_BYTES: usize = 8 << 20;

/// Maximum holders tried for a result, in a run of thousands.
pub const HOLDERS_MAX: usize = 16;

/// Passes over all holders before a result counts as lost. An unresponsive holder is usually about to be
/// removed, and the next generation names others.
pub const PULL_PASSES_MAX: u32 = 6;

/// Pause between two passes over the holders.
pub const PULL_PAUSE: Duration = Duration::from_millis(500);

/// A request for one result.
#[derive(Debug)]
pub(super) struct Request {
    pub round: Round,
    pub fragment: FragmentId,
    pub hash: Option<Hash>,
    pub from: WorkerId,
}

#[derive(Debug)]
struct Want {
    hash: Option<Hash>,
    /// Holders in the order of requests; never empty.
    holders: Vec<WorkerId>,
    /// Requests made.
    asked: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Due,
    Paused { until: Duration },
    InFlight { from: WorkerId },
}

type Key = (Round, FragmentId);

/// At most one per (round, fragment) in the window of rounds that a member keeps: tens of thousands when it
/// catches up, so none is examined twice without a cause.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    wants: BTreeMap<Key, Want>,
    /// Keys in each state.
    due: BTreeSet<Key>,
    paused: BTreeSet<(Duration, Key)>,
    in_flight: usize,
    /// Number of results received, and bytes of the longest.
    arrived: usize,
    longest: usize,
}

impl Pulls {
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a result to fetch; returns false without holders.
    pub fn want(&mut self, key: Key, hash: Option<Hash>, mut holders: Vec<WorkerId>) -> bool {
        if holders.is_empty() {
            return false;
        }
        holders.truncate(HOLDERS_MAX);
        self.wants.entry(key).or_insert_with(|| {
            self.due.insert(key);
            Want { hash, holders, asked: 0, state: State::Due }
        });
        true
    }

    /// Removes a result that has arrived by any path.
    pub fn forget(&mut self, key: Key) {
        match self.wants.remove(&key).map(|want| want.state) {
            Some(State::Due) => _ = self.due.remove(&key),
            Some(State::Paused { until }) => _ = self.paused.remove(&(until, key)),
            Some(State::InFlight { .. }) => self.in_flight -= 1,
            None => {}
        }
    }

    /// Records the arrival of a result of this length.
    pub fn arrived(&mut self, key: Key, bytes: usize) {
        self.arrived += 1;
        self.longest = self.longest.max(bytes).max(1);
        self.forget(key);
    }

    /// Returns the maximum in flight. The first arrivals may be the short ones among many long ones.
    fn in_flight_max(&self) -> usize {
        let is_known = self.arrived >= PULLS_IN_FLIGHT_MAX;
        let of_that_length = IN_FLIGHT_BYTES.checked_div(self.longest).filter(|_| is_known);
        of_that_length.unwrap_or(PULLS_IN_FLIGHT_MAX).clamp(PULLS_IN_FLIGHT_MAX, SMALL_PULLS_IN_FLIGHT_MAX)
    }

    /// Returns the expected hash, if known, and the peer of a request in flight; `None`: not requested.
    pub fn in_flight(&self, key: Key) -> Option<(Option<Hash>, WorkerId)> {
        let want = self.wants.get(&key)?;
        match want.state {
            State::InFlight { from } => Some((want.hash, from)),
            State::Due | State::Paused { .. } => None,
        }
    }

    /// Returns the requests to make now, earlier rounds first.
    pub fn start(&mut self, now: Duration) -> Vec<Request> {
        while let Some((_, key)) = self.paused.first().copied().filter(|(until, _)| *until <= now) {
            self.paused.pop_first();
            if let Some(want) = self.wants.get_mut(&key) {
                want.state = State::Due;
                self.due.insert(key);
            }
        }
        let mut requests = Vec::new();
        while self.in_flight < self.in_flight_max() {
            let Some(key) = self.due.pop_first() else { break };
            let Some(want) = self.wants.get_mut(&key) else { continue };
            let from = want.holders[want.asked % want.holders.len()];
            want.asked += 1;
            want.state = State::InFlight { from };
            self.in_flight += 1;
            requests.push(Request { round: key.0, fragment: key.1, hash: want.hash, from });
        }
        requests
    }

    /// Records a failed request; the next holder's turn, after a pause if all were tried. Returns false after
    /// the last pass.
    pub fn failed(&mut self, key: Key, from: WorkerId, now: Duration) -> bool {
        let Some(want) = self.wants.get_mut(&key) else { return true };
        if want.state != (State::InFlight { from }) {
            return true;
        }
        if want.asked >= want.holders.len() * PULL_PASSES_MAX as usize {
            self.forget(key);
            return false;
        }
        self.in_flight -= 1;
        if want.asked.is_multiple_of(want.holders.len()) {
            let until = now + PULL_PAUSE;
            want.state = State::Paused { until };
            self.paused.insert((until, key));
        } else {
            want.state = State::Due;
            self.due.insert(key);
        }
        true
    }

    /// Returns the time of the next request. (Those waiting for a free slot start when a reply arrives.)
    pub fn next_start(&self) -> Option<Duration> {
        let at = if self.due.is_empty() { self.paused.first()?.0 } else { Duration::ZERO };
        (self.in_flight < self.in_flight_max()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F0: FragmentId = FragmentId(0);
    const HOLDERS: [WorkerId; 2] = [WorkerId(1), WorkerId(2)];

    #[test]
    fn only_so_many_are_under_way_and_earlier_rounds_go_first() {
        let mut pulls = Pulls::default();
        let rounds = 2 * PULLS_IN_FLIGHT_MAX as u64;
        for round in (0..rounds).rev().map(Round) {
            assert!(pulls.want((round, F0), None, HOLDERS.to_vec()));
        }
        let first: Vec<u64> = pulls.start(Duration::ZERO).iter().map(|request| request.round.0).collect();
        assert_eq!(first, (0..PULLS_IN_FLIGHT_MAX as u64).collect::<Vec<_>>());
        assert!(pulls.start(Duration::ZERO).is_empty());
        assert_eq!(pulls.next_start(), None, "an answer comes before a slot is free");
        pulls.forget((Round(3), F0));
        let next: Vec<u64> = pulls.start(Duration::ZERO).iter().map(|request| request.round.0).collect();
        assert_eq!(next, [PULLS_IN_FLIGHT_MAX as u64]);
    }

    #[test]
    fn of_small_results_more_are_asked_for_and_of_large_ones_no_more_than_before() {
        let under_way = |bytes: &[usize]| {
            let mut pulls = Pulls::default();
            (0..2000).map(Round).for_each(|round| _ = pulls.want((round, F0), None, HOLDERS.to_vec()));
            let mut under_way = pulls.start(Duration::ZERO).len();
            assert_eq!(under_way, PULLS_IN_FLIGHT_MAX);
            for round in 0..PULLS_IN_FLIGHT_MAX {
                pulls.arrived((Round(round as u64), F0), bytes[round % bytes.len()]);
                under_way = under_way - 1 + pulls.start(Duration::ZERO).len();
                assert!(under_way == PULLS_IN_FLIGHT_MAX || round + 1 == PULLS_IN_FLIGHT_MAX, "{round}");
            }
            under_way
        };
        assert_eq!(under_way(&[2000, 1500]), SMALL_PULLS_IN_FLIGHT_MAX);
        assert_eq!(under_way(&[2000, 1 << 16, 1500]), 128, "the longest counts");
        assert_eq!(under_way(&[1500, 1 << 22]), PULLS_IN_FLIGHT_MAX);
        assert_eq!(under_way(&[0]), SMALL_PULLS_IN_FLIGHT_MAX);
    }

    #[test]
    fn what_came_another_way_is_not_asked_for_whatever_its_state() {
        let mut pulls = Pulls::default();
        let keys: Vec<Key> = (0..3).map(|round| (Round(round), F0)).collect();
        for &key in &keys[..2] {
            pulls.want(key, None, HOLDERS[..1].to_vec());
        }
        assert_eq!(pulls.start(Duration::ZERO).len(), 2);
        assert!(pulls.failed(keys[0], HOLDERS[0], Duration::ZERO));
        pulls.want(keys[2], None, HOLDERS.to_vec());
        // One pauses, one is in flight, one is due.
        keys.iter().for_each(|&key| pulls.forget(key));
        assert!(pulls.start(PULL_PAUSE).is_empty() && pulls.next_start().is_none());
        assert_eq!(pulls.in_flight, 0);
        // Paused, then due again, then removed.
        pulls.want(keys[0], None, HOLDERS[..1].to_vec());
        for round in 0..PULLS_IN_FLIGHT_MAX as u64 {
            pulls.want((Round(10 + round), F0), None, HOLDERS.to_vec());
        }
        pulls.start(Duration::ZERO);
        pulls.failed(keys[0], HOLDERS[0], Duration::ZERO);
        assert_eq!(pulls.start(Duration::ZERO).len(), 1);
        assert!(pulls.start(PULL_PAUSE).is_empty());
        pulls.forget(keys[0]);
        pulls.forget((Round(10), F0));
        assert!(pulls.start(PULL_PAUSE).is_empty(), "nothing is left");
    }

    #[test]
    fn holders_are_asked_in_turn_with_a_pause_after_each_pass() {
        let mut pulls = Pulls::default();
        let key = (Round(0), F0);
        pulls.want(key, None, HOLDERS.to_vec());
        let mut now = Duration::ZERO;
        for pass in 1..=PULL_PASSES_MAX {
            for holder in HOLDERS {
                let asked: Vec<WorkerId> = pulls.start(now).iter().map(|request| request.from).collect();
                assert_eq!(asked, [holder]);
                let last = pass == PULL_PASSES_MAX && holder == HOLDERS[1];
                assert_eq!(pulls.failed(key, holder, now), !last);
            }
            assert!(pulls.start(now).is_empty());
            now += PULL_PAUSE;
        }
        assert_eq!(pulls.next_start(), None);
        assert!(!pulls.want(key, None, Vec::new()), "there must be somebody to ask");
    }
}
