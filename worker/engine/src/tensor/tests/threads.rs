//! A tensor group on threads, whose sums may be wrong.

use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use longhaul_collective::{Collective, CollectiveError, Reduction};

use super::Word;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// The last member is left out of the sums of forward passes.
    LeavesOutForwards,
    /// The last member is left out of the sums of backward passes.
    LeavesOutBackwards,
    /// Its contribution counts twice there.
    CountsTwiceBackwards,
    /// All fail at this call.
    FailsAt(usize),
}

/// Members of one process: sums are in the order of ranks. Calls unused by tensor groups are errors.
pub struct Threads {
    rank: usize,
    meeting: Arc<Meeting>,
    fault: Fault,
    calls: usize,
}

struct Meeting {
    barrier: Barrier,
    values: Mutex<Vec<Vec<f32>>>,
    words: Mutex<Vec<Word>>,
    bytes: Mutex<Vec<u8>>,
}

impl Threads {
    pub fn group(size: usize, fault: Fault) -> Vec<Box<dyn Collective>> {
        let meeting = Arc::new(Meeting {
            barrier: Barrier::new(size),
            values: Mutex::new(vec![Vec::new(); size]),
            words: Mutex::new(vec![Word::default(); size]),
            bytes: Mutex::default(),
        });
        let member = |rank| Self { rank, meeting: Arc::clone(&meeting), fault, calls: 0 };
        (0..size).map(|rank| Box::new(member(rank)) as Box<dyn Collective>).collect()
    }

    /// Returns the last member's weight in this call. Two layers have two sums each, in either direction.
    fn weight_of_last(&self) -> f32 {
        let is_forward = self.calls % 8 < 4;
        match self.fault {
            Fault::LeavesOutForwards if is_forward => 0.0,
            Fault::LeavesOutBackwards if !is_forward => 0.0,
            Fault::CountsTwiceBackwards if !is_forward => 2.0,
            _ => 1.0,
        }
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.meeting.values.lock().unwrap().len()
    }

    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError> {
        assert_eq!(reduction, Reduction::Sum);
        if self.fault == Fault::FailsAt(self.calls) {
            return Err(CollectiveError::Stopped);
        }
        self.meeting.values.lock().unwrap()[self.rank] = values.to_vec();
        self.meeting.barrier.wait();
        let all = self.meeting.values.lock().unwrap().clone();
        self.meeting.barrier.wait();
        let last = all.len() - 1;
        assert!(all.iter().all(|other| other.len() == values.len()));
        values.fill(0.0);
        for (rank, other) in all.iter().enumerate() {
            let weight = if rank == last { self.weight_of_last() } else { 1.0 };
            values.iter_mut().zip(other).for_each(|(sum, value)| *sum += weight * value);
        }
        self.calls += 1;
        Ok(0)
    }

    fn exchange(&mut self, word: Word, _: Duration) -> Result<Vec<Word>, CollectiveError> {
        self.meeting.words.lock().unwrap()[self.rank] = word;
        self.meeting.barrier.wait();
        let words = self.meeting.words.lock().unwrap().clone();
        self.meeting.barrier.wait();
        Ok(words)
    }

    fn reduce_scatter(
        &mut self,
        _: &mut [f32],
        _: &[Range<usize>],
        _: Reduction,
    ) -> Result<u64, CollectiveError> {
        Err(CollectiveError::Stopped)
    }

    fn all_gather(&mut self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CollectiveError> {
        Err(CollectiveError::Stopped)
    }

    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError> {
        if self.rank == root {
            self.meeting.bytes.lock().unwrap().clone_from(bytes);
        }
        self.meeting.barrier.wait();
        bytes.clone_from(&self.meeting.bytes.lock().unwrap());
        self.meeting.barrier.wait();
        assert!(bytes.len() <= bytes_max);
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.meeting.barrier.wait();
        Ok(())
    }
}
