//! Requests of an operator to a running run: pause, resume, dismiss a worker, kick one.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{REVOKED_MAX, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::event::ConnectionId;
use crate::run::generations::generation_config::GenerationConfig;
use crate::run::machine::Run;
use crate::run::state::Phase;

/// How a run has stopped for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspended {
    /// It goes on where it was.
    Whole,
    /// It goes on from an older checkpoint: some could not write theirs, or were lost.
    Short,
}

impl Accounting {
    /// Whether rounds are held back. A run that is to end does not wait for that.
    pub(crate) fn is_held(&self, core: &Core) -> bool {
        (core.state.requests.pause || self.waits_for_slow_joiner(core)) && !core.state.requests.drain
    }

    /// Whether a generation has to begin for that.
    pub(crate) fn checkpoint_is_due(&self, core: &Core) -> bool {
        core.state.checkpoints.is_asked && !core.is_closing() && !self.is_held(core)
    }
}

impl Core {
    /// The phase and what it implies for the last round: whether a joiner could still take part.
    pub(crate) fn is_closing(&self) -> bool {
        let at_end = |lineup: &GenerationConfig| lineup.first_round >= lineup.until;
        self.state.requests.drain || self.state.generations.present.as_ref().is_some_and(at_end)
    }

    /// Whether that was requested.
    pub(crate) fn is_paused(&self) -> bool {
        self.state.requests.pause && !self.state.requests.drain && self.state.phase != Phase::Finished
    }

    pub(crate) fn handle_drain(&mut self) {
        if !self.state.requests.drain && self.state.phase != Phase::Finished {
            self.state.requests.drain = true;
            self.persist();
            self.notice(Severity::Info, None, "asked to stop: open rounds are finished first".to_owned());
        }
    }

    /// All write a checkpoint after the first round of a new generation, which is the same one for all of them.
    pub(crate) fn handle_checkpoint_call(&mut self) {
        if self.state.phase == Phase::Training && !self.is_closing() && !self.state.checkpoints.is_asked {
            self.state.checkpoints.is_asked = true;
            self.persist();
            self.notice(Severity::Info, None, "a checkpoint was requested".to_owned());
        }
    }

    pub(crate) fn handle_pause(&mut self) {
        if self.state.requests.pause || self.state.requests.drain || self.state.phase == Phase::Finished {
            return;
        }
        self.state.requests.pause = true;
        self.persist();
        let text = "paused: open rounds are finished, then training stops until `coordinator resume`";
        self.notice(Severity::Info, None, text.to_owned());
    }

    pub(crate) fn handle_resume(&mut self) {
        if std::mem::take(&mut self.state.requests.pause) {
            self.persist();
            self.notice(Severity::Info, None, "resumed: training goes on".to_owned());
        }
    }

    /// Connections on which it has not joined.
    fn close_all_of(&mut self, worker: WorkerId) {
        let of_worker = self.connections.iter().filter(|(_, connection)| connection.worker == worker);
        let connections: Vec<ConnectionId> = of_worker.map(|(&connection, _)| connection).collect();
        for connection in connections {
            self.close(connection, "this worker was taken out of the run");
        }
    }

    /// Sends a joining worker the list of revoked ones.
    pub(crate) fn tell_revoked(&mut self, worker: WorkerId) {
        let all: Vec<WorkerId> = self.state.roster.revoked.iter().copied().collect();
        for workers in all.chunks(REVOKED_MAX) {
            self.send(worker, ToWorker::Revoked { workers: workers.to_vec() });
        }
    }
}

impl Run {
    /// Whether training members still have to receive the pause: the generation then settles, and the next one waits.
    pub(crate) fn pause_is_due(&self) -> bool {
        self.accounting.is_held(&self.core) && self.generations.settling.is_none() && !self.core.is_closing()
    }

    /// Everybody writes a checkpoint and leaves; the run is not over.
    pub(crate) fn handle_suspend(&mut self) {
        if self.generations.suspending
            || self.core.state.requests.drain
            || self.core.state.phase == Phase::Finished
        {
            return;
        }
        self.generations.suspending = true;
        let text =
            "asked to stop for now: open rounds are finished, then all workers write a checkpoint and leave";
        self.core.notice(Severity::Info, None, text.to_owned());
        self.let_all_go();
    }

    /// Whether the run was to stop for now, and everybody has left: with all that was trained on a disk, or with less.
    #[must_use]
    pub fn suspended(&self) -> Option<Suspended> {
        let is_over = self.generations.suspending
            && self.core.peers.is_empty()
            && self.core.state.phase != Phase::Finished;
        is_over.then_some(if self.recovery.is_short() { Suspended::Short } else { Suspended::Whole })
    }

    /// A worker leaves in an orderly way, because an operator asks it to.
    pub(crate) fn handle_dismiss(&mut self, worker: WorkerId) {
        let reason = "the operator asks this worker to leave; the run goes on without it";
        self.let_go_when_spared(worker, reason, "leaves, as the operator asks");
    }

    /// Reports that the run was over after `done` steps, and goes on.
    pub fn note_extension(&mut self, done: u64) {
        let text = format!(
            "the run had ended after {done} steps and goes on to {}: the learning rate follows the new number",
            self.core.state.rounds.schedule.steps
        );
        self.core.notice(Severity::Info, None, text);
    }

    /// Dismisses a worker that leaves in order.
    pub(crate) fn let_go(&mut self, worker: WorkerId, reason: &str, what: &str) {
        self.core.note_holder(worker);
        self.core.send(worker, ToWorker::Dismiss { reason: reason.to_owned() });
        self.generations.gone.insert(worker);
        self.remove(worker, Severity::Info, what);
    }

    /// Revokes a worker's certificate. All workers receive it, so that its peers disconnect too; later joiners receive it on joining.
    pub(crate) fn handle_kick(&mut self, worker: WorkerId) {
        if !self.core.state.roster.revoked.insert(worker) {
            return;
        }
        // It must be durable before any worker receives it.
        self.core.persist();
        let reason = "the operator has taken this worker out of the run: its certificate is revoked";
        self.core.send(worker, ToWorker::Refused { reason: reason.to_owned() });
        let others = self.core.peers.iter().filter(|(other, _)| **other != worker);
        let connections: Vec<ConnectionId> = others.filter_map(|(_, peer)| peer.connection).collect();
        for connection in connections {
            self.core.reply(connection, ToWorker::Revoked { workers: vec![worker] });
        }
        self.generations.gone.insert(worker);
        if self.core.peers.contains_key(&worker) {
            self.remove(worker, Severity::Warning, "was taken out of the run by the operator, for good");
        } else {
            let text = "was taken out of the run by the operator, for good; it was not connected".to_owned();
            self.core.notice(Severity::Warning, Some(worker), text);
        }
        self.core.close_all_of(worker);
    }
}
