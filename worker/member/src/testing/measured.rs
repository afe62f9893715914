//! Access for measurements: updates of rounds, and the time of activities.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::Round;
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;

use super::{Rig, Worker};
use crate::message::{RoundUpdate, ToDevice};

impl<const N: usize> Rig<N> {
    /// Waits for the update of a round at a worker's device.
    pub fn update(&mut self, at: usize, round: u64) -> RoundUpdate {
        let got = Cell::new(None);
        self.pump(|workers| {
            let message = workers[at].device.try_recv().ok();
            let is_here = message.is_some();
            got.set(message);
            is_here
        });
        match got.into_inner() {
            Some(ToDevice::Apply { round: of, update, .. }) if of == Round(round) => update,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the time of each activity of all workers since the last call.
    pub fn spent(&self) -> BTreeMap<&'static str, Duration> {
        self.world.spent()
    }
}

impl Worker {
    /// Reports whether members contribute gradients in a round, and all of them.
    pub fn sends_gradients(&self, round: u64) -> bool {
        self.sync.shares_everything_in(Round(round))
    }

    /// Returns the model's layout and its rounds.
    pub fn layout_and_schedule(&self) -> (FragmentLayout, RoundSchedule) {
        (self.running().rounds.layout, self.running().rounds.schedule)
    }
}
