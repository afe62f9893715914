//! The device's single point of permission to continue.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use longhaul_common::id::{Round, WorkerId};
use longhaul_common::sampler::Positions;
use longhaul_common::schedule::RoundSchedule;
use longhaul_common::timeline::{Assignment, Timeline, place_in};

/// Stands between the device thread and the membership: a round begins only while the barrier is open.
///
/// [`StepBarrier::close`] and [`StepBarrier::enter`] exclude each other, so the round returned on closing stays current until the next opening: the fence
/// between generations.
#[derive(Debug)]
pub struct StepBarrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    open: bool,
    stopped: bool,
    epoch: u64,
    /// Next round for the device; taken when it begins.
    next: Option<Round>,
    begun: Option<Round>,
    until: Round,
    schedule: RoundSchedule,
    timeline: Timeline,
    /// Round after which a checkpoint is requested.
    checkpoint_after: Option<Round>,
}

impl State {
    fn must_wait(&self, epoch: u64) -> bool {
        !self.stopped && self.epoch == epoch && !(self.open && self.next.is_some())
    }

    fn enter(&mut self, epoch: u64) -> Entry {
        if self.stopped {
            return Entry::Stopped;
        }
        match self.next.filter(|_| self.epoch == epoch) {
            None => Entry::Outlived,
            Some(round) if round >= self.until => Entry::AtEnd(round),
            Some(round) => {
                self.next = None;
                self.begun = Some(round);
                Entry::Begun(round)
            }
        }
    }
}

/// Result of [`StepBarrier::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// This round may be computed.
    Begun(Round),
    /// The run, or its rest before a drain, ends before this round.
    AtEnd(Round),
    /// The caller's epoch is over: [`StepBarrier::renew`] was called.
    Outlived,
    /// The worker is being stopped.
    Stopped,
}

impl StepBarrier {
    /// Creates a closed barrier for steps of `batch` samples, with the configured rounds.
    #[must_use]
    pub fn new(batch: u64, schedule: RoundSchedule) -> Self {
        let timeline = Timeline::new(batch);
        let state = State {
            open: false,
            stopped: false,
            epoch: 0,
            next: None,
            begun: None,
            until: Round(0),
            schedule,
            timeline,
            checkpoint_after: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Begins the next round, once the barrier is open and has one. Only the device thread calls this, with the epoch of its entry.
    #[must_use]
    pub fn enter(&self, epoch: u64) -> Entry {
        let waiting = |state: &mut State| state.must_wait(epoch);
        let mut state = self.changed.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        state.enter(epoch)
    }

    /// The same without blocking; `None`: it would block.
    #[must_use]
    pub fn try_enter(&self, epoch: u64) -> Option<Entry> {
        let mut state = self.lock();
        (!state.must_wait(epoch)).then(|| state.enter(epoch))
    }

    /// Sets the device's next round.
    pub fn set_next(&self, round: Round) {
        self.lock().next = Some(round);
        self.changed.notify_all();
    }

    /// Withdraws the next round; `false`: it has begun already, or none was set.
    pub fn withdraw(&self) -> bool {
        self.lock().next.take().is_some()
    }

    /// Closes the barrier and returns the latest begun round.
    pub fn close(&self) -> Option<Round> {
        let mut state = self.lock();
        state.open = false;
        state.begun
    }

    /// Opens the barrier for rounds before `until`. The assignments replace the timeline from their first steps on; the schedule differs from the previous
    /// one only in future rounds.
    pub fn open(&self, assignments: Vec<Arc<Assignment>>, until: Round, schedule: RoundSchedule) {
        let mut state = self.lock();
        for assignment in assignments {
            state.timeline.push(assignment);
        }
        state.until = until;
        state.schedule = schedule;
        state.open = true;
        self.changed.notify_all();
    }

    /// Requests a checkpoint after a round, in addition to due ones.
    pub fn ask_for_checkpoint(&self, after: Round) {
        self.lock().checkpoint_after = Some(after);
    }

    /// Reports whether one was requested after this round. `true` once.
    #[must_use]
    pub fn take_checkpoint(&self, after: Round) -> bool {
        self.lock().checkpoint_after.take_if(|asked| *asked == after).is_some()
    }

    /// Releases a waiting device for another entry: ends its epoch, and returns the number of the next.
    pub fn renew(&self) -> u64 {
        let mut state = self.lock();
        state.next = None;
        state.epoch += 1;
        self.changed.notify_all();
        state.epoch
    }

    /// Stops the device: every later call of [`StepBarrier::enter`] returns [`Entry::Stopped`].
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Reports whether [`StepBarrier::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Reports whether rounds may begin.
    #[cfg(test)]
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Returns the schedule of rounds, as far as known.
    #[must_use]
    pub fn schedule(&self) -> RoundSchedule {
        self.lock().schedule
    }

    /// Returns this worker's stream positions of a step, in order.
    #[must_use]
    pub fn positions(&self, step: u64, worker: WorkerId) -> Vec<Positions> {
        self.lock().timeline.positions(step, worker)
    }

    /// Returns the stream positions of a step over all workers, in order.
    #[must_use]
    pub fn all_positions(&self, step: u64) -> Vec<Positions> {
        self.lock().timeline.positions_without(step, &BTreeSet::new())
    }

    /// Returns the place of this worker among those that share a step, and their number; `None`: it has no share.
    #[must_use]
    pub fn place(&self, step: u64, worker: WorkerId) -> Option<(usize, usize)> {
        let state = self.lock();
        let workers = &state.timeline.at(step)?.workers;
        Some((place_in(workers, worker)?, workers.len()))
    }

    /// Drops assignments that ended before `step`, which are not needed any more.
    pub fn forget_before(&self, step: u64) {
        self.lock().timeline.forget_before(step);
    }

    /// Each statement leaves the state consistent, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::sampler::SampleFeed;
    use longhaul_common::schedule::Changes;
    use std::sync::Arc;

    const SCHEDULE: RoundSchedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 1,
        exchanges: 1,
        steps: 100,
        changes: Changes::NONE,
    };

    fn everything_to(worker: u32) -> Vec<Arc<Assignment>> {
        vec![Arc::new(Assignment::evenly(SampleFeed::default(), vec![WorkerId(worker)]))]
    }

    #[test]
    fn a_round_that_waits_at_a_closed_barrier_begins_when_it_opens() {
        let barrier = Arc::new(StepBarrier::new(4, SCHEDULE));
        barrier.open(everything_to(1), Round(9), SCHEDULE);
        barrier.set_next(Round(2));
        assert_eq!(barrier.enter(0), Entry::Begun(Round(2)));
        assert_eq!(barrier.close(), Some(Round(2)));
        barrier.set_next(Round(3));
        let device = std::thread::spawn({
            let barrier = Arc::clone(&barrier);
            move || barrier.enter(0)
        });
        assert_eq!(barrier.close(), Some(Round(2)), "a waiting round has not begun");
        barrier.open(everything_to(7), Round(9), SCHEDULE);
        assert_eq!(device.join().unwrap(), Entry::Begun(Round(3)));
        assert_eq!(barrier.close(), Some(Round(3)));
        assert!(barrier.positions(0, WorkerId(1)).is_empty());
        assert_eq!(barrier.positions(0, WorkerId(7)).len(), 1);
    }

    #[test]
    fn a_new_epoch_sends_a_waiting_device_away() {
        let barrier = Arc::new(StepBarrier::new(4, SCHEDULE));
        barrier.open(everything_to(1), Round(9), SCHEDULE);
        let device = std::thread::spawn({
            let barrier = Arc::clone(&barrier);
            move || barrier.enter(0)
        });
        assert_eq!(barrier.renew(), 1);
        assert_eq!(device.join().unwrap(), Entry::Outlived);
    }

    #[test]
    fn the_end_and_a_stop_turn_rounds_away() {
        let barrier = StepBarrier::new(4, SCHEDULE);
        barrier.open(everything_to(1), Round(2), SCHEDULE);
        barrier.set_next(Round(2));
        assert_eq!(barrier.enter(0), Entry::AtEnd(Round(2)));
        assert_eq!(barrier.close(), None);
        barrier.stop();
        assert_eq!(barrier.enter(0), Entry::Stopped);
    }
}
