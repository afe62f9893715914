//! What is to happen, in order of time.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::{Generation, Round};
use longhaul_proto::control::message::{ToCoordinator, ToWorker};

use longhaul_plan::Answer;
use longhaul_run::ConnectionId;

/// What happens at some time. Workers are places in the list of all.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A worker's process starts.
    Start(usize),
    /// It dies, if it is still that one.
    Kill(usize, u64),
    /// All workers of a site die for so long.
    Outage(usize, Duration),
    /// It connects, if it is still that one.
    Connect(usize, u64),
    /// Its words reach the coordinator.
    ToRun(ConnectionId, ToCoordinator),
    /// The coordinator's words reach it.
    ToWorker(usize, ConnectionId, ToWorker),
    /// The coordinator has hung up.
    Closed(usize, ConnectionId),
    /// It has a state to begin from, of a round, for this part; if it was not told anything else meanwhile.
    Loaded(usize, u64, Option<Round>),
    /// It has computed the steps before the result of the last round must be there.
    HeadDone(usize, u64),
    /// It has computed a round.
    RoundDone(usize, u64),
    /// The result of a round is with all who hold a part.
    Result(Generation, u32, Round),
    /// A fiftieth of all workers say that they are alive, or show it to who speaks for them.
    Heartbeats(usize),
    /// What came of a question whether another plan pays.
    Planned(Box<Answer>),
    /// The coordinator wanted to look again.
    Timer,
}

/// The queue. What is planned for the same time happens in the order in which it was planned.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<(Duration, u64), Happening>,
    planned: u64,
}

impl Queue {
    pub fn push(&mut self, at: Duration, happening: Happening) {
        self.planned += 1;
        self.waiting.insert((at, self.planned), happening);
    }

    /// The next one, unless it is after `until`.
    pub fn pop(&mut self, until: Duration) -> Option<(Duration, Happening)> {
        let next = self.waiting.first_entry().filter(|next| next.key().0 <= until)?;
        let ((at, _), happening) = next.remove_entry();
        Some((at, happening))
    }
}
