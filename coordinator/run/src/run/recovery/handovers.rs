//! A worker that is to leave and alone holds some state goes once another worker holds it too, or it is on a disk.
//!
//! While workers that stay catch up with the rounds, it waits for them. Where each worker has the whole model and a worker is about to join, the last one that trains
//! stays until the joiner has the rounds. Otherwise a generation ends at a round and all write their checkpoint. If workers stay, one of them copies the leaver's
//! checkpoint, and they go on from there: with a spare in its place, or under another plan. Otherwise the run waits for a worker with such a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{CheckpointOffer, HANDOVER_MAX, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};
use crate::run::recovery::Recovery;
use crate::run::recovery::source::offer_of;
use crate::run::state::Phase;

/// A checkpoint is written when this much time is left, even where a joiner could take the leaver's state.
const WRITES_BEFORE: Duration = Duration::from_secs(HANDOVER_MAX.as_secs() / 2);
/// Time that a suspended run waits for its rounds: an operator is present.
const SUSPEND_MAX: Duration = Duration::from_secs(86_400);

/// A worker that asks to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Leave {
    /// It leaves at this time, even with unique state.
    until: Duration,
    /// Reason for the worker itself.
    reason: String,
    /// Reason for notices.
    what: String,
    /// Workers asked to copy its last checkpoint.
    asked: BTreeSet<WorkerId>,
    /// The leaving process.
    incarnation: u64,
}

/// Leaving workers that others still need.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Handovers {
    leaving: BTreeMap<WorkerId, Leave>,
}

impl Handovers {
    /// Forgets a worker that has left.
    pub fn forget(&mut self, worker: WorkerId) {
        self.leaving.remove(&worker);
    }

    /// Whether any exist.
    pub fn are_waited_for(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether this worker goes as soon as it can be spared.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.leaving.contains_key(&worker)
    }
}

impl Run {
    /// Lets a worker leave in order: at once, or when others have the state that it alone has.
    pub(crate) fn let_go_when_spared(&mut self, worker: WorkerId, reason: &str, what: &str) {
        if !self.recovery.is_needed(&self.core, worker) {
            return self.let_go(worker, reason, what);
        }
        let Some(incarnation) = self.core.peers.get(&worker).map(|peer| peer.known.incarnation) else {
            return;
        };
        if self.recovery.handovers.leaving.get(&worker).is_some_and(|leave| leave.incarnation == incarnation)
        {
            return self.core.send(worker, ToWorker::Handover);
        }
        let minutes = HANDOVER_MAX.as_secs() / 60;
        let is_held = self.accounting.is_held(&self.core);
        let text = format!(
            "is to leave, but {}, in {minutes} minutes at the latest",
            self.recovery.why_needed(&self.core, worker, is_held)
        );
        self.core.notice(Severity::Info, Some(worker), text);
        self.recovery.keep_until_spared(&mut self.core, worker, HANDOVER_MAX, incarnation, (reason, what));
    }

    /// Lets all workers leave, as the run is suspended: members once all have written a checkpoint of the same round, however long that
    /// takes.
    pub(crate) fn let_all_go(&mut self) {
        const REASON: &str =
            "the run stops for now: it goes on when its coordinator and its workers are started again";
        const WHAT: &str = "leaves, as the run stops for now";
        let stays = |(worker, peer): &(&WorkerId, &Peer)| {
            peer.connection.is_some() && !self.recovery.handovers.has(**worker)
        };
        let all: Vec<(WorkerId, u64, bool)> = self
            .core
            .peers
            .iter()
            .filter(stays)
            .map(|(&worker, peer)| (worker, peer.known.incarnation, peer.is_present_member()))
            .collect();
        for (worker, incarnation, is_member) in all {
            match is_member && self.core.state.phase == Phase::Training {
                true => self.recovery.keep_until_spared(
                    &mut self.core,
                    worker,
                    SUSPEND_MAX,
                    incarnation,
                    (REASON, WHAT),
                ),
                false => self.let_go(worker, REASON, WHAT),
            }
        }
    }

    /// Dismisses workers that are no longer needed, or whose time is up.
    pub(crate) fn let_go_the_spared(&mut self) {
        // A briefly absent worker is needed as before; and the end of a run dismisses all.
        let is_settled = self.generations.waits_until().is_none()
            && !self.core.state.requests.drain
            && !self.core.generation_ends();
        let is_due = |(worker, leave): &(&WorkerId, &Leave)| {
            leave.until <= self.core.now || is_settled && !self.recovery.is_needed(&self.core, **worker)
        };
        let due: Vec<(WorkerId, Leave)> = self
            .recovery
            .handovers
            .leaving
            .iter()
            .filter(is_due)
            .map(|(&worker, leave)| (worker, leave.clone()))
            .collect();
        for (worker, Leave { reason, what, incarnation, .. }) in due {
            self.recovery.is_short |=
                self.generations.is_suspending() && self.recovery.is_needed(&self.core, worker);
            self.recovery.handovers.forget(worker);
            // Another process of it has not been asked to leave.
            if self.core.peers.get(&worker).is_some_and(|peer| peer.known.incarnation == incarnation) {
                self.let_go(worker, &reason, &what);
            }
        }
    }

    /// Whether a generation has to end for all to write checkpoints.
    pub(crate) fn handover_is_due(&self) -> bool {
        let is_soon = self
            .recovery
            .handovers
            .leaving
            .values()
            .any(|leave| leave.until <= self.core.now + WRITES_BEFORE);
        (is_soon || self.accounting.is_held(&self.core) || !self.recovery.may_wait(&self.core, None))
            && self.core.state.phase == Phase::Training
            && !self.core.is_closing()
            && self
                .recovery
                .handovers
                .leaving
                .keys()
                .any(|worker| self.recovery.is_needed(&self.core, *worker))
    }

    /// Carries out the handover once all workers have done every round before `round` and have it on disk: when others hold the leavers' state, those go, and the
    /// rest begins anew.
    pub(crate) fn carry_out_handover(&mut self, round: Round) {
        let leaving: Vec<WorkerId> = self.recovery.handovers.leaving.keys().copied().collect();
        if leaving.iter().any(|&worker| self.recovery.waits_for_copy(&self.core, worker, round)) {
            return leaving
                .into_iter()
                .for_each(|worker| self.recovery.have_copied(&mut self.core, worker, round));
        }
        if self.core.state.plans.moving.take().is_some() {
            let text =
                "the move to a new plan is cancelled: a worker that has a part in it, or may have, leaves"
                    .to_owned();
            self.core.notice(Severity::Info, None, text);
        }
        let survivors = self.core.keep_their_residuals(&leaving, round);
        self.end_at(round, &survivors);
        self.recovery.tell_what_goes(&mut self.core, &leaving, round);
        for worker in leaving {
            let Some(Leave { reason, what, .. }) = self.recovery.handovers.leaving.remove(&worker) else {
                continue;
            };
            if let Some(peer) = self.core.peers.get_mut(&worker) {
                // The others of its copy receive the order to begin anew, and nothing else.
                peer.slot = None;
            }
            self.let_go(worker, &reason, &what);
        }
        self.begin_anew(None, round);
    }

    /// Ends the generation at `round`: all present workers have applied the rounds before, and none goes on with its memory. Only survivors recover
    /// their residuals.
    pub(crate) fn end_at(&mut self, round: Round, survivors: &BTreeSet<WorkerId>) {
        self.planning.training_stops(self.core.now);
        for peer in self.core.peers.values_mut() {
            peer.progress.next_round = peer.progress.next_round.map(|next| next.max(round));
        }
        self.count_rounds();
        self.core.lose_late(round);
        if let Some(old) = self.core.state.generations.present.clone() {
            self.core.count_lost_residuals(&old, survivors);
            let kept = old.members().map(|member| member.worker).filter(|worker| survivors.contains(worker));
            self.core.state.residuals.resting = Some((old.clone(), kept.collect()));
        }
    }
}

impl Recovery {
    fn keep_until_spared(
        &mut self,
        core: &mut Core,
        worker: WorkerId,
        within: Duration,
        incarnation: u64,
        (reason, what): (&str, &str),
    ) {
        let leave = Leave {
            until: core.now + within,
            reason: reason.to_owned(),
            what: what.to_owned(),
            asked: BTreeSet::new(),
            incarnation,
        };
        self.handovers.leaving.insert(worker, leave);
        core.send(worker, ToWorker::Handover);
    }

    /// Describes why a worker is still needed.
    fn why_needed(&self, core: &Core, worker: WorkerId, is_held: bool) -> String {
        if core.state.phase != Phase::Training {
            return "no other worker has some of the state that the run goes on from: it leaves once others have it"
                .to_owned();
        }
        let parts = core.ranks();
        let may_wait = !is_held && self.may_wait(core, Some(worker));
        if may_wait && self.a_replica_stays(core, Some(worker)) {
            return "the workers that stay are catching up: it leaves once they have its rounds".to_owned();
        }
        let whose = match core.rank_of(worker).filter(|_| parts > 1) {
            Some(rank) => format!("no other worker has its part of the model ({} of {parts})", rank + 1),
            None => "is the only worker that trains".to_owned(),
        };
        let when = match () {
            () if may_wait => "a joining worker has fetched the state from it",
            () if core.may_copy()
                && core.keeper_for(worker, |other| !self.handovers.has(other)).is_some() =>
            {
                "another worker has a copy of its checkpoint"
            }
            () => "its checkpoint is written",
        };
        format!("{whose}: it leaves once {when}")
    }

    /// Whether the run would lose state with a worker.
    fn is_needed(&self, core: &Core, worker: WorkerId) -> bool {
        let is_here = |peer: &Peer| peer.connection.is_some();
        let stays = |other: WorkerId| other != worker && !self.handovers.has(other);
        if core.state.requests.drain || !core.peers.get(&worker).is_some_and(is_here) {
            return false;
        }
        match core.state.phase {
            // The run's next state may be partly with one worker alone.
            Phase::Gathering | Phase::Preparing => {
                let with = core.choose_source().round();
                let others_stay = core.peers.iter().any(|(other, peer)| is_here(peer) && stays(*other));
                others_stay && core.choose_source_of(|other| other != worker).round() < with
            }
            Phase::Training => {
                let is_member = core.peers.get(&worker).is_some_and(Peer::is_present_member);
                let own = core.peers.get(&worker).and_then(Peer::holds_before);
                let through = core.state.rounds.ledger.through();
                let all = own.map_or(through, |own| own.min(through));
                let whole = core.replicas_where(|peer| {
                    peer.is_present_member() && peer.holds_before().is_some_and(|before| before >= all)
                });
                is_member && !whole.iter().any(|workers| workers.iter().copied().all(stays))
            }
            Phase::Draining | Phase::Finished => false,
        }
    }

    /// Whether workers that stay are about to have the state without an end of the generation: they catch up, or fetch a whole model. `without`: one that is about to
    /// leave as well.
    fn may_wait(&self, core: &Core, without: Option<WorkerId>) -> bool {
        let fetches = |peer: &Peer| matches!(peer.standing, Standing::Healing | Standing::Ready);
        let stays = |other: WorkerId| Some(other) != without && !self.handovers.has(other);
        self.a_replica_stays(core, without)
            || core.ranks() == 1 && core.peers.iter().any(|(other, peer)| fetches(peer) && stays(*other))
    }

    /// Whether a whole replica of members stays: if a leaver is needed all the same, it catches up.
    fn a_replica_stays(&self, core: &Core, without: Option<WorkerId>) -> bool {
        let stays = |other: &WorkerId| Some(*other) != without && !self.handovers.has(*other);
        core.replicas_where(Peer::is_present_member).iter().any(|workers| workers.iter().all(stays))
    }

    /// Time of the next look at leaving workers, without an earlier event.
    pub(crate) fn handovers_end(&self, core: &Core) -> Option<Duration> {
        let of = |leave: &Leave| [leave.until.saturating_sub(WRITES_BEFORE), leave.until];
        self.handovers.leaving.values().flat_map(of).filter(|at| *at > core.now).min()
    }

    /// Reports the holders of the state before `round` once these workers have left.
    fn tell_what_goes(&mut self, core: &mut Core, leaving: &[WorkerId], round: Round) {
        let has_written = |worker: &WorkerId| core.own_checkpoint(*worker, round).is_some();
        let alone: Vec<WorkerId> =
            leaving.iter().copied().filter(|worker| !self.is_copied(core, *worker, round)).collect();
        let written: Vec<WorkerId> = alone.iter().copied().filter(has_written).collect();
        if !written.is_empty() {
            let names: Vec<String> = written.iter().map(ToString::to_string).collect();
            let text = format!(
                "the state before {round} is in checkpoints of workers that leave ({}): the run goes on from it when they are back",
                names.join(", ")
            );
            core.notice(Severity::Info, None, text);
            core.state.end.left_with = Some((round, written.iter().copied().collect()));
        }
        let rank_of = |worker: &WorkerId| core.rank_of(*worker);
        let kept: BTreeSet<_> = written.iter().map(rank_of).collect();
        let lost: Vec<WorkerId> =
            alone.into_iter().filter(|worker| !kept.contains(&rank_of(worker))).collect();
        self.is_short |= !lost.is_empty();
        for worker in lost {
            let text = "leaves, and its last checkpoint could not be written: the run goes back to the newest complete checkpoint".to_owned();
            core.notice(Severity::Error, Some(worker), text);
        }
    }

    /// Whether a copy may yet be made. A worker at the end has reported its checkpoint before; where it could not be written, none exists.
    fn waits_for_copy(&self, core: &Core, worker: WorkerId, round: Round) -> bool {
        if self.is_copied(core, worker, round) || core.own_checkpoint(worker, round).is_none() {
            return false;
        }
        core.peers.values().any(|peer| peer.checkpoints.is_keeping)
            || self.unasked_keeper(core, worker).is_some()
    }

    fn unasked_keeper(&self, core: &Core, worker: WorkerId) -> Option<WorkerId> {
        let asked = &self.handovers.leaving.get(&worker).filter(|_| core.may_copy())?.asked;
        core.keeper_for(worker, |other| !asked.contains(&other) && !self.handovers.has(other))
    }

    /// Whether a staying worker has the checkpoint before `round` of a leaving one.
    fn is_copied(&self, core: &Core, worker: WorkerId, round: Round) -> bool {
        let Some(own) = core.own_checkpoint(worker, round) else { return false };
        let has_it = |peer: &Peer| offer_of(peer, round, (own.rank, own.parts), own.state_hash).is_some();
        core.peers.iter().any(|(other, peer)| !self.handovers.has(*other) && has_it(peer))
    }

    /// Asks the staying workers for a copy of it, one after the other, each once.
    fn have_copied(&mut self, core: &mut Core, worker: WorkerId, round: Round) {
        let Some(own) = core.own_checkpoint(worker, round).filter(|_| !self.is_copied(core, worker, round))
        else {
            return;
        };
        if core.peers.values().any(|peer| peer.checkpoints.is_keeping) {
            return;
        }
        let Some(keeper) = self.unasked_keeper(core, worker) else { return };
        if let Some(leave) = self.handovers.leaving.get_mut(&worker) {
            leave.asked.insert(keeper);
        }
        core.ask_to_keep(keeper, worker, own);
    }
}

impl Core {
    /// Records a worker that leaves in order while the run waits for others. If no staying worker has its checkpoint, the run waits
    /// for it later.
    pub(crate) fn note_holder(&mut self, worker: WorkerId) {
        if !matches!(self.state.phase, Phase::Gathering | Phase::Preparing) {
            return;
        }
        let left = self.state.end.left_with.as_ref().map(|left| left.0);
        let Some(newest) = left.max(self.choose_source().round()) else { return };
        let has = |peer: &Peer| peer.checkpoints.offers.iter().any(|offer| offer.next_round == newest);
        let can_spare = self.choose_source_of(|other| other != worker).round() == Some(newest);
        if can_spare || !self.peers.get(&worker).is_some_and(has) {
            return;
        }
        match &mut self.state.end.left_with {
            Some((round, workers)) if *round == newest => drop(workers.insert(worker)),
            left => *left = Some((newest, [worker].into())),
        }
    }

    /// Whether a worker may be asked for a copy of another one's checkpoint.
    fn may_copy(&self) -> bool {
        self.config.may_be_shared() && self.config.checkpoint.copies
    }

    /// Workers whose own checkpoints keep their residuals. Where others stay, they take the leavers' places.
    pub(crate) fn keep_their_residuals(&self, leaving: &[WorkerId], round: Round) -> BTreeSet<WorkerId> {
        let is_here = |peer: &Peer| peer.connection.is_some();
        let all_leave = self.peers.iter().all(|(worker, peer)| !is_here(peer) || leaving.contains(worker));
        let written =
            self.peers.keys().copied().filter(|worker| self.own_checkpoint(*worker, round).is_some());
        written.filter(|worker| all_leave || !leaving.contains(worker)).collect()
    }

    fn own_checkpoint(&self, worker: WorkerId, round: Round) -> Option<CheckpointOffer> {
        let part = (self.rank_of(worker)?, self.ranks());
        let name = |offer: &CheckpointOffer| (offer.next_round, (offer.rank, offer.parts));
        self.peers.get(&worker)?.checkpoints.offers.iter().find(|offer| name(offer) == (round, part)).cloned()
    }

    /// Whether the generation ends before the run does.
    pub(crate) fn generation_ends(&self) -> bool {
        self.state.until().is_some_and(|until| until.0 < self.state.rounds.schedule.rounds())
    }
}
