//! Turns of the machine: so many runs go at once.

use std::num::NonZero;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;

/// Runs that go at once at least. A small run of four processes waits for its links most of the time: on two cores its workers used a sixth of one each.
const TURNS_MIN: usize = 3;
/// On a larger machine.
const CORES_PER_TURN: usize = 2;

/// Those of this machine.
static TURNS: LazyLock<Turns> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    Turns::new(TURNS_MIN.max(cores / CORES_PER_TURN))
});

/// Waits for one turn.
pub fn take_turn() -> Turn<'static> {
    TURNS.take(1)
}

/// Waits for turns that leave at least one to others, for a run of many processes.
pub fn take_most_turns() -> Turn<'static> {
    TURNS.take(TURNS_MIN - 1)
}

/// Waits until no other run goes, for a test that depends on how fast this machine is.
pub fn take_all_turns() -> Turn<'static> {
    TURNS.take(TURNS.count)
}

/// A number of turns. Those who ask get theirs in the order in which they asked, so that nobody who asks for several waits for ever.
struct Turns {
    count: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: usize,
    /// Of who asks next.
    next_ticket: u64,
    /// Of who gets turns next.
    served_next: u64,
}

/// Turns that somebody has. They are given back when this is dropped.
pub struct Turn<'a> {
    turns: &'a Turns,
    count: usize,
}

impl Turns {
    fn new(count: usize) -> Self {
        let state = State { free: count, next_ticket: 0, served_next: 0 };
        Self { count, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn take(&self, count: usize) -> Turn<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let waits = |state: &mut State| state.served_next != ticket || state.free < count;
        let mut state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        state.served_next += 1;
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

    /// Waits until so many have asked.
    fn wait_until_asked(turns: &Turns, count: u64) {
        while turns.state.lock().unwrap().next_ticket < count {
            thread::yield_now();
        }
    }

    #[test]
    fn who_asks_for_all_turns_waits_for_those_before_and_is_not_overtaken() {
        let turns = Turns::new(2);
        let (said, order) = mpsc::channel();
        let (first, second) = (turns.take(1), turns.take(1));
        thread::scope(|scope| {
            let ask = |count, name| {
                let (turns, said) = (&turns, said.clone());
                scope.spawn(move || {
                    let turn = turns.take(count);
                    said.send(name).unwrap();
                    drop(turn);
                });
            };
            ask(2, "all");
            wait_until_asked(&turns, 3);
            ask(1, "one");
            wait_until_asked(&turns, 4);
            drop(first);
            assert!(order.try_recv().is_err(), "one turn is free, and the next one wants two");
            drop(second);
            assert_eq!(order.iter().take(2).collect::<Vec<_>>(), ["all", "one"]);
        });
        assert_eq!(turns.state.lock().unwrap().free, 2);
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
