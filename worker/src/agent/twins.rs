//! Detection of another process with the same identity, such as a copy of a machine or cache folder: the two would evict each other forever.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A process younger than this is the newcomer. Older takeovers do not count.
const LATELY: Duration = Duration::from_secs(60);
/// How often an older process reclaims its place; a newcomer never does.
const INSISTS: usize = 2;

/// The recent takeovers of this process's place.
#[derive(Debug, Default)]
pub(super) struct Twins(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    welcomed: Option<Instant>,
    replaced: VecDeque<Instant>,
}

impl Twins {
    /// Records a welcome by the coordinator.
    pub fn welcomed(&self, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).welcomed.get_or_insert(now);
    }

    /// Records a takeover. Returns whether this process must become another worker: a newcomer at once, an older one when the other insists.
    pub fn must_yield(&self, now: Instant) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = |at: Instant| now >= at + LATELY;
        while seen.replaced.front().is_some_and(|at| is_late(*at)) {
            seen.replaced.pop_front();
        }
        seen.replaced.push_back(now);
        let is_newcomer = !seen.welcomed.is_some_and(is_late);
        let yields = is_newcomer || seen.replaced.len() > INSISTS;
        if yields {
            *seen = Seen::default();
        }
        yields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newcomer_yields_at_once_and_who_was_here_before_only_to_one_that_insists() {
        let (start, at) = (Instant::now(), Duration::from_secs);
        let newcomer = Twins::default();
        newcomer.welcomed(start);
        assert!(newcomer.must_yield(start + at(1)));
        assert!(Twins::default().must_yield(start), "it was never welcomed");

        let before = Twins::default();
        before.welcomed(start);
        let yields = |seconds: [u64; 4]| seconds.map(|after| before.must_yield(start + at(100 + after)));
        assert_eq!(yields([0, 70, 140, 210]), [false; 4], "each of them restarted long after the one before");
        assert_eq!(
            yields([300, 301, 302, 303]),
            [false, false, true, true],
            "and then it is a newcomer itself"
        );
    }
}
