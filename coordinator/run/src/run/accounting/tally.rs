//! Work of all processes of a run, from their heartbeats.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

use crate::run::accounting::progress::Totals;

/// Sums over all workers, past and present.
///
/// A heartbeat counts from the start of its process, or of its part in the run. The newest of each worker is kept, and added
/// to the sums when the worker comes back and counts from zero. So no restart, of a worker or of the coordinator, makes
/// anything count twice or not at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Counts that were begun anew.
    ended: Totals,
    /// By worker that ever joined: its newest count.
    newest: BTreeMap<WorkerId, Count>,
    /// How long a coordinator has watched the run train.
    watched: Duration,
    /// Tokens trained on meanwhile.
    watched_tokens: u64,
}

/// Work of one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Count {
    incarnation: u64,
    done: Totals,
}

impl Tally {
    /// Adds a heartbeat. `first`: the worker's first one to this coordinator, so that an increase in a continued count
    /// may be from a time without coordinator.
    pub fn note(&mut self, worker: WorkerId, incarnation: u64, heartbeat: &Heartbeat, first: bool) {
        let done = Totals::of(heartbeat);
        let before = self.newest.insert(worker, Count { incarnation, done });
        let goes_on = |count: &Count| count.incarnation == incarnation && done.continues(&count.done);
        let (known, watched) = match before {
            Some(count) if goes_on(&count) => (count.done, !first),
            Some(count) => {
                self.ended = self.ended.plus(&count.done);
                (Totals::default(), true)
            }
            None => (Totals::default(), true),
        };
        if watched {
            self.watched_tokens = self.watched_tokens.saturating_add(done.since(&known).tokens);
        }
    }

    /// Training went on under a coordinator's eyes for this long.
    pub fn watch(&mut self, time: Duration) {
        self.watched += time;
    }

    /// All that was done.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.newest.values().fold(self.ended, |sum, count| sum.plus(&count.done))
    }

    /// Tokens per second over all workers, while a coordinator watched.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.watched.as_secs_f64();
        (seconds > 0.0).then(|| self.watched_tokens as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_proto::control::message::{TimeSpent, Traffic};

    use super::*;

    const W1: WorkerId = WorkerId(1);
    const W2: WorkerId = WorkerId(2);

    fn heartbeat(tokens: u64) -> Heartbeat {
        let time = TimeSpent { compute_s: tokens as f64, ..TimeSpent::default() };
        let traffic = Traffic { wan_sent_bytes: 10 * tokens, ..Traffic::default() };
        Heartbeat { tokens, time, traffic, ..Heartbeat::default() }
    }

    fn tally(heartbeats: &[(WorkerId, u64, u64)]) -> Tally {
        let mut tally = Tally::default();
        for &(worker, incarnation, tokens) in heartbeats {
            tally.note(worker, incarnation, &heartbeat(tokens), false);
        }
        tally
    }

    #[test]
    fn the_newest_heartbeat_of_each_worker_counts() {
        let totals = tally(&[(W1, 7, 3), (W2, 7, 5), (W1, 7, 4)]).totals();
        assert_eq!((totals.tokens, totals.wan_bytes, totals.compute_s), (9, 90, 9.0));
    }

    #[test]
    fn a_process_that_begins_anew_adds_to_what_the_one_before_did() {
        assert_eq!(tally(&[(W1, 7, 30), (W1, 8, 40), (W1, 8, 41)]).totals().tokens, 71);
    }

    #[test]
    fn a_process_that_joins_anew_and_counts_from_zero_loses_nothing() {
        assert_eq!(tally(&[(W1, 7, 30), (W1, 7, 0), (W1, 7, 5)]).totals().tokens, 35);
    }

    #[test]
    fn what_was_done_while_nobody_watched_is_in_the_sum_and_not_in_the_speed() {
        let mut tally = tally(&[(W1, 7, 100)]);
        tally.watch(Duration::from_secs(10));
        // The coordinator was away.
        tally.note(W1, 7, &heartbeat(500), true);
        assert_eq!((tally.totals().tokens, tally.tokens_per_s()), (500, Some(10.0)));
        tally.note(W1, 7, &heartbeat(600), false);
        tally.watch(Duration::from_secs(10));
        assert_eq!(tally.tokens_per_s(), Some(10.0));
    }
}
