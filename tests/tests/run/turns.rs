//! Turns of the machine, which bound the concurrent runs.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;

/// Minimum concurrent runs. A small run of four processes waits for its links most of the time: on two cores
/// its workers used a sixth of one each.
const TURNS_MIN: usize = 6;
/// Turns of a run of many processes.
const TURNS_OF_MANY: usize = 2;
/// Cores per turn, on a larger machine.
const CORES_PER_TURN: usize = 2;

/// Turns of this machine.
static TURNS: LazyLock<Turns> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    Turns::new(TURNS_MIN.max(cores / CORES_PER_TURN))
});

/// Waits for one turn.
pub fn take_turn() -> Turn<'static> {
    TURNS.take(1)
}

/// Waits for the turns of a run of many processes.
pub fn take_turns_of_many() -> Turn<'static> {
    TURNS.take(TURNS_OF_MANY)
}

/// Waits until no other run has a turn or waits for one, for a test that depends on this machine's speed.
pub fn take_all_turns() -> Turn<'static> {
    TURNS.take(TURNS.count)
}

/// A number of turns, served in the order of requests, so that no request for several waits for ever.
/// Requests for all are overtaken by others: they would block them until the running ones have ended.
struct Turns {
    count: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: usize,
    /// Ticket of the next request.
    next_ticket: u64,
    /// Waiting requests for some, in the order of their tickets.
    some: VecDeque<u64>,
    /// Waiting requests for all.
    all: VecDeque<u64>,
}

impl State {
    /// Whether the request with this ticket, for `count` turns, is served next.
    fn serves(&self, ticket: u64, count: usize) -> bool {
        let next = self.some.front().or_else(|| self.all.front());
        next == Some(&ticket) && count <= self.free
    }
}

/// Turns taken, returned on drop.
pub struct Turn<'a> {
    turns: &'a Turns,
    count: usize,
}

impl Turns {
    fn new(count: usize) -> Self {
        let state = State { free: count, next_ticket: 0, some: VecDeque::new(), all: VecDeque::new() };
        Self { count, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn take(&self, count: usize) -> Turn<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let is_all = count == self.count;
        let queue = if is_all { &mut state.all } else { &mut state.some };
        queue.push_back(ticket);
        let waits = |state: &mut State| !state.serves(ticket, count);
        let mut state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        let queue = if is_all { &mut state.all } else { &mut state.some };
        queue.pop_front();
        state.free -= count;
        drop(state);
        self.changed.notify_all();
        Turn { turns: self, count }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free += self.count;
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Waits until this many requests were made.
    fn wait_until_asked(turns: &Turns, count: u64) {
        while turns.state.lock().unwrap().next_ticket < count {
            thread::yield_now();
        }
    }

    /// Returns the order of these requests for some of three turns, made in sequence while another holds all:
    /// each returns its turns at once.
    fn order(asked: &[(usize, &'static str)]) -> Vec<&'static str> {
        let turns = Turns::new(3);
        let (said, order) = mpsc::channel();
        let first = turns.take(3);
        thread::scope(|scope| {
            for (before, &(count, name)) in asked.iter().enumerate() {
                let (turns, said) = (&turns, said.clone());
                scope.spawn(move || {
                    let turn = turns.take(count);
                    said.send(name).unwrap();
                    drop(turn);
                });
                wait_until_asked(turns, 2 + before as u64);
            }
            assert!(order.try_recv().is_err(), "no turn is free");
            drop(first);
        });
        assert_eq!(turns.state.lock().unwrap().free, 3);
        order.try_iter().collect()
    }

    #[test]
    fn who_asks_for_all_turns_comes_after_those_who_ask_for_some() {
        assert_eq!(order(&[(3, "all"), (2, "two"), (3, "all, later")]), ["two", "all", "all, later"]);
    }

    #[test]
    fn who_asks_for_several_turns_is_not_overtaken() {
        let turns = Turns::new(3);
        let held = (turns.take(1), turns.take(1));
        thread::scope(|scope| {
            let (said, order) = mpsc::channel();
            for (count, name) in [(2, "two"), (1, "one")] {
                let (turns, said) = (&turns, said.clone());
                scope.spawn(move || {
                    let turn = turns.take(count);
                    said.send(name).unwrap();
                    drop(turn);
                });
                wait_until_asked(turns, if count == 2 { 3 } else { 4 });
            }
            assert!(order.try_recv().is_err(), "one turn is free, and the next one wants two");
            drop(held.0);
            assert_eq!(order.iter().take(2).collect::<Vec<_>>().first(), Some(&"two"));
        });
    }

    #[test]
    fn a_test_that_fails_gives_its_turn_back() {
        let turns = Turns::new(1);
        let failed = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _turn = turns.take(1);
                    panic!("a run fails");
                })
                .join()
        });
        assert!(failed.is_err());
        drop(turns.take(1));
    }
}
