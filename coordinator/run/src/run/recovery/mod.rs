//! Recovery of the run's state: holders, handovers, and the state that a run goes on from.

pub(super) mod absent_holders;
pub(super) mod archived;
pub(super) mod checkpoint_replication;
pub(super) mod handovers;
pub(super) mod joint_restart;
pub(super) mod rewinds;
pub(super) mod source;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use self::absent_holders::AbsentHolders;
use self::handovers::Handovers;
use self::joint_restart::Together;

/// Copies of the run's state: their holders, handovers, and the case of absent holders.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recovery {
    handovers: Handovers,
    absent_holders: AbsentHolders,
    together: Together,
    /// Meanwhile something was lost that had been trained.
    is_short: bool,
    /// A failed copy of a checkpoint was reported.
    copy_failed: bool,
}

impl Recovery {
    /// A worker is not here any more.
    pub(super) fn departed(&mut self, worker: WorkerId) {
        self.handovers.forget(worker);
    }

    /// Training begins, from a state that all have.
    pub(super) fn begin(&mut self) {
        self.absent_holders = AbsentHolders::default();
    }

    /// All begin anew together.
    pub(super) fn begin_anew(&mut self) {
        self.together = Together::default();
    }

    pub(super) fn waits_for_handovers(&self) -> bool {
        self.handovers.are_waited_for()
    }

    /// Something may be lost that had been trained.
    pub(super) fn note_short(&mut self, is_lost: bool) {
        self.is_short |= is_lost;
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }
}
