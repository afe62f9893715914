//! The requested batches and their states, as a plain value without threads.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::DataError;

/// Batches ready at once, including that of the next step: one for the device and one being read.
pub(super) const READY_MAX: usize = 2;
/// Steps whose reads are announced to the operating system, including the ready ones: enough to keep many disk reads in flight.
pub(super) const EXPECTED_MAX: usize = 16;
/// Upper bound of announced bytes not yet taken, or one step: this much of the page cache may be displaced.
const EXPECTED_BYTES_MAX: u64 = 64 << 20;

/// The samples of a step and their micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Positions of the run's stream, in order.
    pub positions: Vec<u64>,
    /// Sequences per pass through the model.
    pub micro_batch: usize,
}

/// A step with its number, for [`Queue::handle_expected`] or [`Queue::handle_read`].
pub(super) type Numbered = (u64, Arc<ReadRequest>);

/// The steps to come, the next one first.
///
/// The device requests steps ([`Self::want`]) and takes the first batch ([`Self::poll_batch`]). One thread polls for reads to announce to
/// the operating system ([`Self::poll_expect`]), another for samples to read ([`Self::poll_read`]).
#[derive(Debug)]
pub(super) struct Queue<T> {
    steps: VecDeque<Step<T>>,
    /// Steps requested so far, to number them.
    numbered: u64,
}

#[derive(Debug)]
struct Step<T> {
    number: u64,
    wanted: Arc<ReadRequest>,
    /// Bytes announced to the operating system; `None`: not announced.
    expected: Option<u64>,
    is_begun: bool,
    read: Option<Result<T, DataError>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { steps: VecDeque::new(), numbered: 0 }
    }
}

impl<T> Queue<T> {
    /// Replaces the steps to come, at most [`EXPECTED_MAX`]. Reads of other steps, done or in flight, are discarded.
    pub fn want(&mut self, steps: impl IntoIterator<Item = ReadRequest>) {
        let mut before = std::mem::take(&mut self.steps);
        for wanted in steps.into_iter().take(EXPECTED_MAX) {
            let step = match before.iter().position(|step| *step.wanted == wanted) {
                Some(at) => before.drain(..=at).next_back(),
                None => None,
            };
            let step = step.unwrap_or_else(|| self.unread(wanted));
            self.steps.push_back(step);
        }
    }

    /// Takes the batch of the first step and removes the step; `None` before it is read.
    pub fn poll_batch(&mut self) -> Option<Result<T, DataError>> {
        let read = self.steps.front_mut()?.read.take()?;
        self.steps.pop_front();
        Some(read)
    }

    /// Returns the next step to announce to the operating system, if the bound leaves room for it or if it is read next.
    pub fn poll_expect(&self) -> Option<Numbered> {
        let in_hand: u64 = self.steps.iter().filter_map(|step| step.expected).sum();
        let at = self.steps.iter().position(|step| step.expected.is_none())?;
        let step = &self.steps[at];
        (in_hand < EXPECTED_BYTES_MAX || self.next() == Some(at))
            .then(|| (step.number, Arc::clone(&step.wanted)))
    }

    /// Returns the step whose samples to read now, if any. A step is announced before it is read.
    pub fn poll_read(&mut self) -> Option<Numbered> {
        let at = self.next()?;
        let step = &mut self.steps[at];
        step.expected?;
        step.is_begun = true;
        Some((step.number, Arc::clone(&step.wanted)))
    }

    /// Returns the index of the step to read next.
    fn next(&self) -> Option<usize> {
        self.steps.iter().take(READY_MAX).position(|step| !step.is_begun)
    }

    /// Records the bytes announced for a step.
    pub fn handle_expected(&mut self, number: u64, bytes: u64) {
        if let Some(step) = self.step(number) {
            step.expected = Some(bytes);
        }
    }

    /// Records a step's samples, or the error of reading them. Steps no longer requested are dropped.
    pub fn handle_read(&mut self, number: u64, read: Result<T, DataError>) {
        if let Some(step) = self.step(number) {
            step.read = Some(read);
        }
    }

    fn step(&mut self, number: u64) -> Option<&mut Step<T>> {
        self.steps.iter_mut().find(|step| step.number == number)
    }

    fn unread(&mut self, wanted: ReadRequest) -> Step<T> {
        self.numbered += 1;
        let (number, wanted) = (self.numbered, Arc::new(wanted));
        Step { number, wanted, expected: None, is_begun: false, read: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(position: u64) -> ReadRequest {
        ReadRequest { positions: (position..position + 4).collect(), micro_batch: 2 }
    }

    /// Does all pending work, with `bytes` per step, and returns the positions announced and read.
    fn work(queue: &mut Queue<u64>, bytes: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut expected, mut read) = (Vec::new(), Vec::new());
        loop {
            if let Some((number, wanted)) = queue.poll_expect() {
                expected.push(wanted.positions[0]);
                queue.handle_expected(number, bytes);
            } else if let Some((number, wanted)) = queue.poll_read() {
                read.push(wanted.positions[0]);
                queue.handle_read(number, Ok(wanted.positions[0]));
            } else {
                break;
            }
        }
        (expected, read)
    }

    fn taken(queue: &mut Queue<u64>) -> Option<u64> {
        Some(queue.poll_batch()?.unwrap())
    }

    #[test]
    fn what_comes_is_expected_far_ahead_and_read_a_little_ahead() {
        let mut queue = Queue::default();
        queue.want((0..100).map(step));
        let all = || (0..EXPECTED_MAX as u64).collect::<Vec<_>>();
        assert_eq!(work(&mut queue, 1), (all(), vec![0, 1]));
        assert_eq!(taken(&mut queue), Some(0));
        queue.want((1..100).map(step));
        assert_eq!(work(&mut queue, 1), (vec![EXPECTED_MAX as u64], vec![2]));
        assert_eq!((taken(&mut queue), taken(&mut queue), taken(&mut queue)), (Some(1), Some(2), None));
    }

    #[test]
    fn so_much_is_expected_as_has_room_and_always_what_is_read_next() {
        let mut queue = Queue::default();
        queue.want((0..100).map(step));
        assert_eq!(work(&mut queue, EXPECTED_BYTES_MAX / 3 + 1), (vec![0, 1, 2], vec![0, 1]));
        let mut queue = Queue::default();
        queue.want((0..100).map(step));
        assert_eq!(work(&mut queue, 3 * EXPECTED_BYTES_MAX), (vec![0, 1], vec![0, 1]));
    }

    #[test]
    fn other_positions_or_another_micro_batch_make_what_was_read_worthless_and_the_rest_stays() {
        let mut queue = Queue::default();
        queue.want((0..4).map(step));
        work(&mut queue, 1);
        // A round is skipped: the batch read for the second step becomes that of the first.
        queue.want((1..5).map(step));
        assert_eq!(work(&mut queue, 1), (vec![4], vec![2]));
        assert_eq!(taken(&mut queue), Some(1));
        // A new generation hands out others.
        queue.want([step(50), step(2)]);
        assert_eq!(queue.poll_batch().map(|_| ()), None);
        assert_eq!(work(&mut queue, 1), (vec![50], vec![50]));
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(50), Some(2)));
        queue.want([step(7)]);
        work(&mut queue, 1);
        queue.want([ReadRequest { micro_batch: 1, ..step(7) }]);
        assert_eq!(work(&mut queue, 1), (vec![7], vec![7]));
    }

    #[test]
    fn what_is_read_while_it_is_not_wanted_any_more_is_dropped() {
        let mut queue = Queue::default();
        queue.want([step(0)]);
        assert_eq!(queue.poll_read(), None, "the system was not told of it yet");
        queue.handle_expected(queue.poll_expect().unwrap().0, 1);
        let (number, _) = queue.poll_read().unwrap();
        queue.want([step(1)]);
        queue.handle_read(number, Ok(0));
        assert_eq!(queue.poll_batch().map(|_| ()), None);
        assert_eq!(work(&mut queue, 1), (vec![1], vec![1]));
        assert_eq!(taken(&mut queue), Some(1));
    }

    #[test]
    fn an_error_is_that_of_the_step_which_could_not_be_read() {
        let mut queue = Queue::default();
        queue.want((0..2).map(step));
        while let Some((number, _)) = queue.poll_expect() {
            queue.handle_expected(number, 1);
        }
        for read in [Ok(0), Err(DataError::Stopped)] {
            let (number, _) = queue.poll_read().unwrap();
            queue.handle_read(number, read);
        }
        assert_eq!(taken(&mut queue), Some(0));
        assert!(matches!(queue.poll_batch(), Some(Err(DataError::Stopped))));
    }
}
