//! Who holds the state of the run, who hands it over, and from where a run goes on.

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

/// The copies of the run's state: who holds one, who hands one over, and what becomes of a run whose holders are away.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recovery {
    handovers: Handovers,
    absent_holders: AbsentHolders,
    together: Together,
    /// Meanwhile something was lost that had been trained.
    is_short: bool,
    /// A copy of a checkpoint could not be had, and people were told.
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
