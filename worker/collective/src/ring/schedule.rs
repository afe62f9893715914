//! Order of sent and received chunks. Pure.

use std::ops::Range;

/// A transferred part of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Range in elements.
    pub range: Range<usize>,
    /// Whether this member's contribution to a sum is included: sent, or added to the received chunk.
    pub contributes: bool,
}

/// One member's part in a transfer. The first `head_start` sends can begin at once; send i beyond them passes on the result of receive i − `head_start` in
/// memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Schedule {
    pub sends: Vec<Chunk>,
    pub receives: Vec<Chunk>,
    pub head_start: usize,
}

/// A member's position, and its size of chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingPosition {
    pub rank: usize,
    pub size: usize,
    /// Most elements of a chunk.
    pub chunk: usize,
}

impl RingPosition {
    /// Member r ends up with the sum of `ranges[r]`, begun by member r+1; with `gather`, all with all of them.
    /// Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    pub fn reduce(self, ranges: &[Range<usize>], gather: bool) -> Schedule {
        // Ranges, and whether they are still being summed. A range received at one place of the path is sent at the next.
        let mut path: Vec<_> = (1..=self.size).map(|round| (self.back(round), true)).collect();
        if gather {
            path.extend((1..self.size).map(|round| (self.back(round), false)));
        }
        let last = path.len() - 1;
        let mut schedule = Schedule::default();
        for (at, (range, contributes)) in path.into_iter().enumerate() {
            // The first of the path is this member's own contribution; complete sums are passed on unchanged.
            if at < last {
                self.cut(&ranges[range], at == 0, &mut schedule.sends);
            }
            if at == 0 {
                schedule.head_start = schedule.sends.len();
            } else {
                self.cut(&ranges[range], contributes, &mut schedule.receives);
            }
        }
        schedule
    }

    /// All get every member r's `ranges[r]`.
    pub fn gather(self, ranges: &[Range<usize>]) -> Schedule {
        let mut schedule = Schedule::default();
        for round in 0..self.size {
            let range = &ranges[self.back(round)];
            if round < self.size - 1 {
                self.cut(range, false, &mut schedule.sends);
            }
            if round == 0 {
                schedule.head_start = schedule.sends.len();
            } else {
                self.cut(range, false, &mut schedule.receives);
            }
        }
        schedule
    }

    /// All get the root's `len` elements, from member to member.
    pub fn broadcast(self, root: usize, len: usize) -> Schedule {
        let mut schedule = Schedule::default();
        let next = (self.rank + 1) % self.size;
        if next != root {
            self.cut(&(0..len), false, &mut schedule.sends);
        }
        if self.rank == root {
            schedule.head_start = schedule.sends.len();
        } else {
            self.cut(&(0..len), false, &mut schedule.receives);
        }
        schedule
    }

    /// Returns the rank `places` before this member's.
    fn back(self, places: usize) -> usize {
        (self.rank + 2 * self.size - places) % self.size
    }

    fn cut(self, range: &Range<usize>, contributes: bool, into: &mut Vec<Chunk>) {
        let starts = range.clone().step_by(self.chunk);
        into.extend(
            starts.map(|start| Chunk { range: start..range.end.min(start + self.chunk), contributes }),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::super::even_ranges;
    use super::*;

    /// Runs the schedules of all members over queues, taking members in turn; values are the lists of summed ranks.
    fn simulate(
        schedules: &[Schedule],
        len: usize,
        begin: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Vec<Vec<Vec<usize>>> {
        let size = schedules.len();
        let mut memories: Vec<Vec<_>> =
            (0..size).map(|rank| (0..len).map(|at| begin(rank, at)).collect()).collect();
        let mut links = vec![VecDeque::new(); size];
        let mut done = vec![(0, 0); size];
        loop {
            let before = done.clone();
            for (rank, schedule) in schedules.iter().enumerate() {
                let (sent, received) = &mut done[rank];
                if *sent < schedule.sends.len() && *sent < schedule.head_start + *received {
                    let range = schedule.sends[*sent].range.clone();
                    links[(rank + 1) % size].push_back((range.clone(), memories[rank][range].to_vec()));
                    *sent += 1;
                }
                if let Some((range, values)) = links[rank].pop_front() {
                    let chunk = &schedule.receives[*received];
                    assert_eq!(chunk.range, range, "the neighbours disagree on the order of chunks");
                    for (at, mut value) in range.zip(values) {
                        if chunk.contributes {
                            value.extend_from_slice(&memories[rank][at]);
                        }
                        memories[rank][at] = value;
                    }
                    *received += 1;
                }
            }
            if done == before {
                break;
            }
        }
        for (schedule, (sent, received)) in schedules.iter().zip(done) {
            assert_eq!((schedule.sends.len(), schedule.receives.len()), (sent, received), "stuck");
        }
        memories
    }

    fn schedules(size: usize, make: impl Fn(RingPosition) -> Schedule) -> Vec<Schedule> {
        (0..size).map(|rank| make(RingPosition { rank, size, chunk: 3 })).collect()
    }

    #[test]
    fn sums_go_round_in_the_documented_order() {
        for size in 1..9 {
            for len in [0, 1, 7, 24, 50] {
                let ranges = even_ranges(len, size);
                let schedules = schedules(size, |place| place.reduce(&ranges, true));
                let memories = simulate(&schedules, len, |rank, _| vec![rank]);
                for (owner, range) in ranges.iter().enumerate() {
                    let order: Vec<_> = (1..=size).map(|step| (owner + step) % size).collect();
                    for memory in &memories {
                        assert!(memory[range.clone()].iter().all(|value| *value == order));
                    }
                }
            }
        }
    }

    #[test]
    fn a_scattered_sum_ends_with_its_owner_and_moves_each_value_once_for_each_other_member() {
        let ranges = [4..9, 0..4, 12..12, 10..20];
        let schedules = schedules(4, |place| place.reduce(&ranges, false));
        let memories = simulate(&schedules, 20, |rank, _| vec![rank]);
        for (owner, range) in ranges.iter().enumerate() {
            let order: Vec<_> = (1..=4).map(|step| (owner + step) % 4).collect();
            assert!(memories[owner][range.clone()].iter().all(|value| *value == order));
        }
        let moved: usize = schedules.iter().flat_map(|s| &s.sends).map(|chunk| chunk.range.len()).sum();
        assert_eq!(moved, 19 * 3);
    }

    #[test]
    fn all_get_what_is_gathered_or_broadcast() {
        for size in 1..6 {
            let ranges = even_ranges(17, size);
            let gathered =
                simulate(&schedules(size, |place| place.gather(&ranges)), 17, |rank, _| vec![rank]);
            for memory in gathered {
                let owners: Vec<_> = memory.iter().map(|value| value[0]).collect();
                assert!(
                    ranges
                        .iter()
                        .enumerate()
                        .all(|(rank, range)| owners[range.clone()].iter().all(|o| *o == rank))
                );
            }
            for root in 0..size {
                let all =
                    simulate(&schedules(size, |place| place.broadcast(root, 17)), 17, |rank, _| vec![rank]);
                assert!(all.iter().flatten().all(|value| *value == [root]));
            }
        }
    }
}
