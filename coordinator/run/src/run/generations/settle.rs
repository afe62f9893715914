//! Training as a sequence of generations: when one ends, how it settles, how the next begins, and how it all ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{ReplicaMembers, Settled, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::accounting::parity::Verdict;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::event::ConnectionId;
use crate::run::generations::Generations;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing};
use crate::run::placement::slots::ReplicaSlot;
use crate::run::state::Phase;

/// How long lost samples wait for a generation that begins for another reason, in milliseconds: a settle costs every
/// member a round trip, and a link that is slow enough to skip rounds skips many.
const BACKLOG_WAIT_MS: u64 = 10_000;
/// Time that ready workers wait for healing ones, in milliseconds: each generation restarts the open exchange.
const JOINERS_WAIT_MS: u64 = 500;

/// A generation that ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settling {
    /// The one that will start.
    generation: Generation,
    /// Members of the old one that are still there.
    participants: BTreeSet<WorkerId>,
    pub answers: BTreeMap<WorkerId, Settled>,
}

impl Settling {
    /// Whether all answers are in.
    pub fn has_heard_all(&self) -> bool {
        self.answers.len() >= self.participants.len()
    }

    /// The generation to settle for, if this worker still owes its answer.
    pub fn unanswered_by(&self, worker: WorkerId) -> Option<Generation> {
        (self.participants.contains(&worker) && !self.answers.contains_key(&worker))
            .then_some(self.generation)
    }
}

impl Run {
    pub(crate) fn advance_training(&mut self) {
        if !self.grace_is_over() {
            return;
        }
        if self.core.copies_may_join() {
            self.place_waiting(&BTreeMap::new());
            self.core.refresh_ready();
        } else {
            // They may have been placed before the first generation began, or before it went back into the warm-up.
            self.core.unplace_joiners();
        }
        let members: BTreeSet<WorkerId> = self.core.present_members().into_iter().collect();
        if members.is_empty() {
            return self.lose_members();
        }
        self.core.close_answered();
        let Some(until) = self.core.state.until() else { return };
        let has_finished = |peer: &Peer| peer.progress.finished.is_some_and(|next| next >= until);
        if members.iter().all(|worker| self.core.peers.get(worker).is_some_and(has_finished))
            && !self.core.drain_is_due()
        {
            return match self.core.state.plans.moving {
                _ if self.core.state.requests.drain || !self.core.generation_ends() => {
                    let why = self.core.words_of_end(until);
                    self.finish(&why);
                }
                Some(_) if !self.recovery.waits_for_handovers() => self.carry_out_move(until),
                _ => self.carry_out_handover(until),
            };
        }
        self.planning.look_at_speeds(&mut self.core);
        self.look_at_plan();
        self.look_at_shares();
        self.accounting.look_at_slow_joiners(&mut self.core);
        self.look_at_those_outside();
        match &self.generations.settling {
            Some(settling) if settling.participants != members => {
                self.generations.start_settle(&mut self.core, members)
            }
            Some(settling)
                if settling.answers.len() == members.len()
                    && (!self.accounting.is_held(&self.core)
                        || self.handover_is_due()
                        || self.core.is_closing()) =>
            {
                self.finish_settle();
            }
            Some(_) => {}
            None if self.settle_is_due(&members) => self.generations.start_settle(&mut self.core, members),
            None => {}
        }
        if !self.core.is_closing() {
            let through = self.core.state.rounds.ledger.through();
            self.liveness.heal_waiting(&mut self.core, |peer| {
                peer.is_present_member() && peer.has_caught_up(through) != Some(false)
            });
        }
    }

    fn settle_is_due(&self, members: &BTreeSet<WorkerId>) -> bool {
        let Some(generation) = &self.core.state.generations.present else { return false };
        let complete = generation.members().all(|member| members.contains(&member.worker));
        let moved = self.liveness.moves_are_told_at(&self.core).is_some_and(|at| at <= self.core.now);
        let joiner =
            !self.core.is_closing() && self.core.joiners_are_due_at().is_some_and(|at| at <= self.core.now);
        // A coordinator that stopped in the middle of a settle has members that wait for its end.
        let interrupted = self.core.state.generations.announced > generation.generation;
        let backlog = self.generations.backlog_settle_at(&self.core).is_some_and(|at| at <= self.core.now);
        !complete
            || moved
            || joiner
            || interrupted
            || backlog
            || self.core.drain_is_due()
            || self.core.move_is_due()
            || self.handover_is_due()
            || self.together_is_due()
            || self.accounting.pace_is_due(&self.core)
            || self.planning.shares_are_due()
            || self.accounting.checkpoint_is_due(&self.core)
            || self.pause_is_due()
    }

    pub(crate) fn handle_settled(&mut self, connection: ConnectionId, worker: WorkerId, settled: Settled) {
        let Some(until) = self.core.state.until() else { return };
        let rank = self.core.rank_of(worker).unwrap_or_default();
        let fragments = self.core.layout_of(rank).count() as usize;
        if settled.open_round > until || settled.computing > until || settled.results.len() > fragments {
            return self.violation(connection, "settled for rounds or fragments that do not exist");
        }
        if let Some(settling) = &mut self.generations.settling
            && settling.generation == settled.generation
            && settling.participants.contains(&worker)
        {
            if let Some(peer) = self.core.peers.get_mut(&worker) {
                peer.progress.complete = Some(settled.open_round);
            }
            settling.answers.insert(worker, settled);
        }
    }

    fn finish_settle(&mut self) {
        let (Some(settling), Some(mut old)) =
            (self.generations.settling.take(), self.core.state.generations.present.clone())
        else {
            return;
        };
        let Some(outcomes) = self.core.outcomes(&old, &settling) else { return self.lose_members() };
        let first_round = outcomes.iter().map(|outcome| outcome.first_round).max().unwrap_or(old.until);
        // A member that computes the last round begins no other.
        let first_round = first_round.min(old.until);
        let open_rounds: Vec<Round> = outcomes.iter().map(|outcome| outcome.settlement.open_round).collect();
        let open_round = open_rounds.iter().copied().min().unwrap_or(first_round);
        self.core.tell_open_rounds(&outcomes, old.until);
        self.core.state.releases.settled();
        self.core.distrust_joiners(&open_rounds);
        self.accounting.undo_from(&mut self.core, open_round, first_round, &settling.participants);
        for (rank, outcome) in (0..).zip(&outcomes) {
            let open = outcome.settlement.open_round;
            // A round whose results all count is not repeated: workers that have applied it have the others' future
            // state.
            let remade = if outcome.is_whole { open.next() } else { open };
            self.core.state.lineage.rewinds.note((rank, self.core.ranks()), settling.generation, remade);
            self.accounting.summaries_mut().reopen(open, rank);
        }
        self.accounting.fix_pace(&mut self.core, &mut old, first_round);
        let ends = self.core.drain_is_due()
            || self.core.move_is_due()
            || self.handover_is_due()
            || self.together_is_due();
        let until = if ends { first_round } else { old.until };
        self.core.lose_shares(&old, &outcomes, first_round, &settling.participants);
        self.core.count_lost_residuals(&old, &settling.participants);

        let may_join = first_round < until && !self.core.state.requests.drain;
        let mut replicas = self.core.replicas_where(|peer| peer.standing == Standing::Member);
        replicas.retain(|workers| workers.iter().all(|worker| settling.participants.contains(worker)));
        replicas.extend(self.core.ready_replicas().into_iter().filter(|_| may_join));
        if self.core.state.requests.drain {
            self.core.state.phase = Phase::Draining;
        }
        let settlements = outcomes.into_iter().map(|outcome| Some(outcome.settlement)).collect();
        self.assemble(settling.generation, replicas, settlements, (first_round, until), open_round);
    }

    /// Takes a member with differing bits out of the generation until it has healed.
    pub(crate) fn mend_parity(&mut self, verdict: &Verdict) {
        for &worker in &verdict.odd {
            let text = format!(
                "parity is broken: its state after {} differs from the others'; it heals",
                verdict.round
            );
            self.core.notice(Severity::Error, Some(worker), text);
            self.accounting.distrust(worker);
            self.generations.gone.insert(worker);
            let slot = self.core.peers.get(&worker).and_then(|peer| peer.slot);
            self.heal_again(worker);
            self.dissolve(slot);
        }
    }

    /// Whether the generation's members are as they are: in the grace after a restart, some may yet come back.
    fn grace_is_over(&mut self) -> bool {
        let Some(grace_until) = self.generations.grace_until else { return true };
        let awaited: Vec<WorkerId> =
            self.core.peers.iter().filter(|(_, peer)| peer.is_awaited()).map(|(&worker, _)| worker).collect();
        if !awaited.is_empty()
            && (self.core.now < grace_until || self.generations.only_awaited_hold_the_state(&self.core))
        {
            return false;
        }
        self.generations.grace_until = None;
        for worker in awaited {
            self.generations.gone.insert(worker);
            self.remove(worker, Severity::Warning, "did not come back in time");
        }
        true
    }

    /// Handles a generation without present members. They may still train, and come back; otherwise the run's state is
    /// lost from memory.
    fn lose_members(&mut self) {
        self.generations.settling = None;
        self.await_members();
        if self.generations.grace_until.is_some() {
            return self.core.notice(
                Severity::Warning,
                None,
                "no member is connected; waiting for them to come back".to_owned(),
            );
        }
        self.core.state.rest();
        self.core.state.plans.moving = None;
        self.recovery.note_short(self.generations.suspending);
        if self.core.state.requests.drain {
            return self.finish("the last worker has left; the newest checkpoints hold the run's progress");
        }
        self.core.state.phase = Phase::Gathering;
        self.generations.last_join = self.core.now;
        for peer in self.core.peers.values_mut().filter(|peer| peer.standing == Standing::Healing) {
            peer.standing = Standing::Waiting;
        }
        self.core.persist();
        self.core.notice(
            Severity::Warning,
            None,
            "all members are lost; gathering workers to go on from a checkpoint".to_owned(),
        );
    }

    /// Gives the generation's members some time to come back.
    pub(crate) fn await_members(&mut self) {
        self.core.members_changed();
        let Some(generation) = &self.core.state.generations.present else { return };
        let is_lost = |member: &Member| {
            self.generations.gone.contains(&member.worker) || self.core.peers.contains_key(&member.worker)
        };
        let whole = |replica: &&ReplicaMembers| !replica.ranks.iter().any(is_lost);
        let replicas: Vec<ReplicaMembers> = generation.replicas.iter().filter(whole).cloned().collect();
        for ReplicaMembers { ranks, .. } in replicas {
            self.generations.replicas_formed += 1;
            for (rank, member) in (0..).zip(ranks) {
                let Some(known) = self.core.state.roster.workers.get(&member.worker) else { continue };
                let mut peer = Peer::new(known.clone(), None, self.core.now);
                peer.standing = Standing::Member;
                peer.data.has_to_tell = self.core.config.may_be_shared();
                peer.model.has_to_tell = self.core.config.model.from.is_some();
                peer.slot = Some(ReplicaSlot { replica: self.generations.replicas_formed, rank });
                self.core.peers.insert(member.worker, peer);
                self.generations.grace_until =
                    Some(self.core.now + Duration::from_millis(self.core.config.faults.reconnect_grace_ms));
            }
        }
    }

    /// The end: everybody is dismissed.
    pub(crate) fn finish(&mut self, why: &str) {
        let workers: Vec<WorkerId> = self.core.peers.keys().copied().collect();
        if let Some(until) = self.core.state.until() {
            for peer in self.core.peers.values_mut().filter(|peer| peer.standing == Standing::Member) {
                peer.progress.next_round = Some(until);
            }
            self.count_rounds();
            self.core.lose_late(until);
            self.core.tell_shortfall(until);
        }
        let peers = self.core.peers.values();
        let is_evaluated = peers.clone().any(|peer| peer.progress.validation_loss.is_some());
        self.accounting.summaries_mut().evaluated(
            peers.clone().filter_map(|peer| peer.progress.validation_loss),
            peers.filter_map(|peer| peer.progress.validation_accuracy),
        );
        if let Some(until) = self.core.state.until().filter(|_| is_evaluated) {
            self.core.judge_evaluation(until, self.accounting.summaries().validation_loss());
        }
        self.core.close_scores();
        self.core.state.end.last_snapshot = Some(self.last_snapshot());
        self.core.state.phase = Phase::Finished;
        self.generations.preparing = None;
        self.generations.settling = None;
        self.core.persist();
        for worker in workers {
            self.core.send(worker, ToWorker::Dismiss { reason: format!("the run is finished: {why}") });
            self.remove(worker, Severity::Info, "is dismissed");
        }
        self.core.notice(Severity::Info, None, format!("the run is finished: {why}"));
    }
}

impl Core {
    /// Time at which a generation begins with the ready workers: at once, or a little later where others heal, so that a site comes back as a whole. `None`: none is
    /// ready.
    pub(crate) fn joiners_are_due_at(&self) -> Option<Duration> {
        let ready = self.ready_replicas();
        let ready_at = |worker: &WorkerId| Some(self.peers.get(worker)?.start.ready_at);
        // A copy is ready when the last of it is.
        let first = ready.iter().filter_map(|workers| workers.iter().filter_map(ready_at).max()).min()?;
        let others_heal = self.peers.values().any(|peer| peer.standing == Standing::Healing);
        Some(if others_heal { first + Duration::from_millis(JOINERS_WAIT_MS) } else { first })
    }

    fn drain_is_due(&self) -> bool {
        self.state.requests.drain && self.state.phase == Phase::Training
    }

    /// Describes the end of a run whose rounds before this one are done.
    fn words_of_end(&self, round: Round) -> String {
        let (schedule, steps) = (&self.state.rounds.schedule, self.state.rounds.schedule.steps);
        match schedule.steps_of(round).start {
            done if done < steps => match self.state.evaluations.ended() {
                Some(reason) => format!("it ended after {done} of {steps} steps: {reason}"),
                None => format!("it was stopped after {done} of {steps} steps"),
            },
            _ => "all rounds are applied".to_owned(),
        }
    }

    /// Rounds that went on without a member which is not here at the end are not in its books.
    pub(crate) fn lose_late(&mut self, until: Round) {
        let Some(generation) = &self.state.generations.present else { return };
        let members = generation.replicas.iter().filter_map(|replica| Some(replica.ranks.first()?.worker));
        let is_here =
            |worker: &WorkerId| self.peers.get(worker).is_some_and(|peer| peer.standing == Standing::Member);
        let absent: Vec<WorkerId> = members.filter(|worker| !is_here(worker)).collect();
        let through = self.state.rounds.ledger.through();
        for worker in absent {
            let lost = self.state.rounds.late.departed(worker, until, through);
            self.lose(lost);
        }
    }

    /// A run has so many steps. A share that a member skipped, or took along, is given out again in the place of other samples, so it
    /// ends with as many less.
    fn tell_shortfall(&mut self, until: Round) {
        let room = self.state.rounds.schedule.steps_of(until).start * u64::from(self.config.train.batch);
        let short = room.saturating_sub(self.state.rounds.ledger.counted().len());
        if short > 0 {
            let text = format!(
                "{short} of {room} samples were not trained on: rounds went on without members that were late or had left"
            );
            self.notice(Severity::Info, None, text);
        }
    }
}

impl Generations {
    /// When a generation begins only to give lost samples out again.
    pub(crate) fn backlog_settle_at(&self, core: &Core) -> Option<Duration> {
        let until = core.state.until().filter(|_| core.state.phase == Phase::Training)?;
        let useful =
            core.state.rounds.ledger.pending() > 0 && core.computing().next() < until && !core.is_closing();
        useful.then(|| self.begun_at + Duration::from_millis(BACKLOG_WAIT_MS))
    }

    fn start_settle(&mut self, core: &mut Core, participants: BTreeSet<WorkerId>) {
        core.state.generations.announced = core.state.generations.announced.next();
        let generation = core.state.generations.announced;
        // No number is announced twice, also by a coordinator that is restarted right now.
        core.persist();
        for &worker in &participants {
            core.send(worker, ToWorker::Settle { generation });
        }
        self.settling = Some(Settling { generation, participants, answers: BTreeMap::new() });
    }

    /// Whether giving up awaited members would mean starting from nothing: no present worker holds the run's state. They may still
    /// train, cut off from the coordinator alone, so the run waits until one of them is here, or others suffice for a run. A
    /// restarted one is not awaited: it has lost its memory.
    fn only_awaited_hold_the_state(&self, core: &Core) -> bool {
        let here = core.peers.values().filter(|peer| peer.connection.is_some()).count();
        let none_of_them_is_here = core.present_members().is_empty();
        none_of_them_is_here
            && here < core.config.run.workers as usize
            && !core.state.requests.drain
            && !self.suspending
            && core.nobody_holds_a_state()
    }
}

impl Accounting {
    /// Undoes rounds from the open one on that were applied everywhere, where all their holders have left and the survivors joined lately and had not caught up. They
    /// repeat these rounds, and the records of them are void.
    fn undo_from(
        &mut self,
        core: &mut Core,
        open_round: Round,
        first_round: Round,
        survivors: &BTreeSet<WorkerId>,
    ) {
        if open_round >= core.state.rounds.ledger.through() {
            return;
        }
        core.state.rounds.ledger.undo(open_round, first_round);
        for (round, worker) in core.state.rounds.late.cut_back(open_round, survivors) {
            core.state.rounds.ledger.lose(round, worker);
        }
        self.cut_back(open_round);
        core.state.evaluations.cut_back(open_round);
        core.state.tasks.cut_back(open_round);
        core.state.lineage.milestones.retain(|round, _| *round <= open_round);
    }
}
