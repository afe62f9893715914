//! Which batches are wanted, and what has become of each: a value that knows no thread.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::DataError;

/// Batches that are ready at once, that of the step which is next included: one for the device to take, and one that is read meanwhile.
pub(super) const READY_MAX: usize = 2;
/// Steps of which the system is told what they will read, those included: enough reads for a disk to have many of them in hand.
pub(super) const EXPECTED_MAX: usize = 16;
/// Bytes that the system was told of and that were not taken yet, at most, or one step: so much of the memory may they push out what others use.
const EXPECTED_BYTES_MAX: u64 = 64 << 20;

/// The samples of a step, and how they go through the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Positions of the run's stream, in order.
    pub positions: Vec<u64>,
    /// Sequences that go through the model at once.
    pub micro_batch: usize,
}

/// A step with its number, for [`Queue::handle_expected`] or [`Queue::handle_read`].
pub(super) type Numbered = (u64, Arc<Wanted>);

/// The steps to come, the next one first.
///
/// The device says what it wants ([`Self::want`]) and takes the first of it ([`Self::poll_batch`]); of two threads one asks what to tell the
/// system ([`Self::poll_expect`]), the other one what to read ([`Self::poll_read`]).
#[derive(Debug)]
pub(super) struct Queue<T> {
    steps: VecDeque<Step<T>>,
    /// Steps ever wanted: each has its number.
    numbered: u64,
}

#[derive(Debug)]
struct Step<T> {
    number: u64,
    wanted: Arc<Wanted>,
    /// Bytes that the system was told of; none: it was not told.
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
    /// From now on these are the steps to come, at most [`EXPECTED_MAX`] of them. What was read or is being read of others is thrown away.
    pub fn want(&mut self, steps: impl IntoIterator<Item = Wanted>) {
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

    /// The batch of the first step, which is done with then; none before it is read.
    pub fn poll_batch(&mut self) -> Option<Result<T, DataError>> {
        let read = self.steps.front_mut()?.read.take()?;
        self.steps.pop_front();
        Some(read)
    }

    /// The step of which the system is to be told now what it will read, if there is room, or if it is read next.
    pub fn poll_expect(&self) -> Option<Numbered> {
        let in_hand: u64 = self.steps.iter().filter_map(|step| step.expected).sum();
        let at = self.steps.iter().position(|step| step.expected.is_none())?;
        let step = &self.steps[at];
        (in_hand < EXPECTED_BYTES_MAX || self.next() == Some(at))
            .then(|| (step.number, Arc::clone(&step.wanted)))
    }

    /// The step whose samples are to be read now, if any: never before the system was told of it.
    pub fn poll_read(&mut self) -> Option<Numbered> {
        let at = self.next()?;
        let step = &mut self.steps[at];
        step.expected?;
        step.is_begun = true;
        Some((step.number, Arc::clone(&step.wanted)))
    }

    /// Which step is read next.
    fn next(&self) -> Option<usize> {
        self.steps.iter().take(READY_MAX).position(|step| !step.is_begun)
    }

    /// The system was told of so many bytes.
    pub fn handle_expected(&mut self, number: u64, bytes: u64) {
        if let Some(step) = self.step(number) {
            step.expected = Some(bytes);
        }
    }

    /// A step's samples, or why they cannot be read. What nobody wants any more is dropped.
    pub fn handle_read(&mut self, number: u64, read: Result<T, DataError>) {
        if let Some(step) = self.step(number) {
            step.read = Some(read);
        }
    }

    fn step(&mut self, number: u64) -> Option<&mut Step<T>> {
        self.steps.iter_mut().find(|step| step.number == number)
    }

    fn unread(&mut self, wanted: Wanted) -> Step<T> {
        self.numbered += 1;
        let (number, wanted) = (self.numbered, Arc::new(wanted));
        Step { number, wanted, expected: None, is_begun: false, read: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(position: u64) -> Wanted {
        Wanted { positions: (position..position + 4).collect(), micro_batch: 2 }
    }

    /// Does what there is to do, each step's reading bringing in so many bytes, and tells which positions were expected and read.
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
        // A round is skipped: what was read for the second step is that of the first one now.
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
        queue.want([Wanted { micro_batch: 1, ..step(7) }]);
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
