//! The queue of due entries, by time and then by order.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

/// Entries that mostly come in order already.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    Heartbeats,
    ToRun,
}

/// Time, order, and the entry's place.
type Key = (Duration, u64, usize);

/// Entries by time and then by order. The heap moves small keys; entries stay in their places. Most entries of a large world come in order already, and keep
/// out of it.
pub struct Agenda<T> {
    queue: BinaryHeap<Reverse<Key>>,
    lanes: [VecDeque<Key>; 2],
    entries: Vec<Option<T>>,
    /// Places of entries that have been taken.
    free: Vec<usize>,
    pushed: u64,
    /// Times at which the coordinator is woken.
    pub run_timers: BTreeSet<Duration>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        let (queue, lanes, entries, free, run_timers) = Default::default();
        Self { queue, lanes, entries, free, pushed: 0, run_timers }
    }
}

impl<T> Agenda<T> {
    /// Adds an entry, after all others of the same time.
    pub fn push(&mut self, at: Duration, entry: T) {
        let key = self.place(at, entry);
        self.queue.push(Reverse(key));
    }

    /// The same of one that most likely follows all others of its lane.
    pub fn push_in(&mut self, lane: Lane, at: Duration, entry: T) {
        let key = self.place(at, entry);
        let lane = &mut self.lanes[lane as usize];
        match lane.back() {
            Some(last) if *last > key => self.queue.push(Reverse(key)),
            _ => lane.push_back(key),
        }
    }

    fn place(&mut self, at: Duration, entry: T) -> Key {
        self.pushed += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place] = Some(entry);
                place
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        };
        (at, self.pushed, place)
    }

    /// Takes the first entry, unless it is due after `end`.
    pub fn pop(&mut self, end: Duration) -> Option<(Duration, T)> {
        let of_lane =
            self.lanes.iter().enumerate().filter_map(|(lane, keys)| Some((*keys.front()?, Some(lane))));
        let of_queue = self.queue.peek().map(|Reverse(key)| (*key, None));
        let ((at, _, place), lane) = of_lane.chain(of_queue).min().filter(|((at, ..), _)| *at <= end)?;
        match lane {
            Some(lane) => _ = self.lanes[lane].pop_front(),
            None => _ = self.queue.pop(),
        }
        self.free.push(place);
        Some((at, self.entries[place].take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_by_time_and_those_of_one_time_in_order() {
        let (mut agenda, s) = (Agenda::default(), Duration::from_secs);
        for (at, entry) in [(3, 'a'), (1, 'b'), (3, 'c'), (2, 'd')] {
            agenda.push(s(at), entry);
        }
        assert_eq!(agenda.pop(s(0)), None);
        assert_eq!(
            [agenda.pop(s(2)), agenda.pop(s(2)), agenda.pop(s(2))],
            [Some((s(1), 'b')), Some((s(2), 'd')), None]
        );
        agenda.push(s(3), 'e');
        for (at, entry) in [(3, 'f'), (9, 'h'), (4, 'g')] {
            agenda.push_in(Lane::ToRun, s(at), entry);
        }
        let rest: Vec<char> = std::iter::from_fn(|| agenda.pop(s(9))).map(|(_, entry)| entry).collect();
        assert_eq!((rest, agenda.entries.len()), (vec!['a', 'c', 'e', 'f', 'g', 'h'], 6));
    }
}
