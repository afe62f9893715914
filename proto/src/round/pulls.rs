//! Results that a member fetches from those who hold them.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::{FragmentId, Round, WorkerId};

use crate::control::message::Hash;

/// Pulls that wait for an answer at once: enough to fill a link with fragments of a megabyte, and few enough
/// that a peer is not swamped when everybody catches up.
pub const PULLS_IN_FLIGHT_MAX: usize = 16;

/// How often all holders are asked before a result counts as lost. A holder that does not answer is as a rule
/// about to be taken out, and the next generation names others.
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
    /// In the order in which they are asked; never empty.
    holders: Vec<WorkerId>,
    /// How many requests have been made.
    asked: usize,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    Waiting { until: Duration },
    InFlight { from: WorkerId },
}

/// At most one per (round, fragment) in the window of rounds that a member keeps.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    wants: BTreeMap<(Round, FragmentId), Want>,
}

impl Pulls {
    pub fn clear(&mut self) {
        self.wants.clear();
    }

    /// Adds a result to fetch. False: there is nobody to ask.
    pub fn want(&mut self, key: (Round, FragmentId), hash: Option<Hash>, holders: Vec<WorkerId>) -> bool {
        if holders.is_empty() {
            return false;
        }
        let state = State::Waiting { until: Duration::ZERO };
        self.wants.entry(key).or_insert(Want { hash, holders, asked: 0, state });
        true
    }

    /// It is here, by this way or another.
    pub fn forget(&mut self, key: (Round, FragmentId)) {
        self.wants.remove(&key);
    }

    /// None: it was not asked for. Otherwise the name that it must have, if that is known, and who was asked.
    pub fn in_flight(&self, key: (Round, FragmentId)) -> Option<(Option<Hash>, WorkerId)> {
        let want = self.wants.get(&key)?;
        match want.state {
            State::InFlight { from } => Some((want.hash, from)),
            State::Waiting { .. } => None,
        }
    }

    /// The requests to make now; earlier rounds first.
    pub fn start(&mut self, now: Duration) -> Vec<Request> {
        let in_flight =
            self.wants.values().filter(|want| matches!(want.state, State::InFlight { .. })).count();
        let free = PULLS_IN_FLIGHT_MAX.saturating_sub(in_flight);
        let due = |want: &Want| matches!(want.state, State::Waiting { until } if until <= now);
        let start = |(&(round, fragment), want): (&(Round, FragmentId), &mut Want)| {
            let from = want.holders[want.asked % want.holders.len()];
            want.asked += 1;
            want.state = State::InFlight { from };
            Request { round, fragment, hash: want.hash, from }
        };
        self.wants.iter_mut().filter(|(_, want)| due(want)).take(free).map(start).collect()
    }

    /// A request failed; the next holder's turn, after a pause if all were asked. False: asked often enough.
    pub fn failed(&mut self, key: (Round, FragmentId), from: WorkerId, now: Duration) -> bool {
        let Some(want) = self.wants.get_mut(&key) else { return true };
        if want.state != (State::InFlight { from }) {
            return true;
        }
        if want.asked >= want.holders.len() * PULL_PASSES_MAX as usize {
            self.wants.remove(&key);
            return false;
        }
        let pause = if want.asked.is_multiple_of(want.holders.len()) { PULL_PAUSE } else { Duration::ZERO };
        want.state = State::Waiting { until: now + pause };
        true
    }

    /// When the next request is due. (Those that wait for a free slot go out when an answer comes.)
    pub fn next_start(&self) -> Option<Duration> {
        let waits = self.wants.values().filter_map(|want| match want.state {
            State::Waiting { until } => Some(until),
            State::InFlight { .. } => None,
        });
        let in_flight = self.wants.len() - waits.clone().count();
        waits.min().filter(|_| in_flight < PULLS_IN_FLIGHT_MAX)
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
