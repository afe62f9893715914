//! Training as a sequence of generations: when one ends, how it settles, how the next begins, and how it all ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{Replica, Settled, ToWorker};
use serde::{Deserialize, Serialize};

use super::command::Severity;
use super::event::ConnectionId;
use super::machine::Run;
use super::parity::Verdict;
use super::peer::{Peer, Standing};
use super::seats::Seat;
use super::state::Phase;

/// How long lost samples wait for a generation that begins for another reason, in milliseconds: a settle costs every
/// member a round trip, and a link that is slow enough to skip rounds skips many.
const BACKLOG_WAIT_MS: u64 = 10_000;
/// How long who is ready waits for others that heal, in milliseconds: each generation has the exchange that is open begin anew.
const JOINERS_WAIT_MS: u64 = 500;

/// A generation that ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Settling {
    /// The one that will start.
    generation: Generation,
    /// Members of the old one that are still there.
    participants: BTreeSet<WorkerId>,
    pub answers: BTreeMap<WorkerId, Settled>,
}

impl Settling {
    /// Whether nobody owes an answer.
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
    pub(super) fn advance_training(&mut self) {
        if !self.grace_is_over() {
            return;
        }
        if self.copies_may_join() {
            self.seat_waiting(&BTreeMap::new());
            self.refresh_ready();
        } else {
            // They may have been seated before the first generation began, or before it went back into the opening.
            self.unseat_joiners();
        }
        let members: BTreeSet<WorkerId> = self.present_members().into_iter().collect();
        if members.is_empty() {
            return self.lose_members();
        }
        let Some(until) = self.state.until() else { return };
        let has_finished = |peer: &Peer| peer.finished.is_some_and(|next| next >= until);
        if members.iter().all(|worker| self.peers.get(worker).is_some_and(has_finished))
            && !self.drain_is_due()
        {
            return match self.state.moving {
                _ if self.state.drain || !self.generation_ends() => {
                    let why = self.words_of_end(until);
                    self.finish(&why);
                }
                Some(_) if !self.handovers.are_waited_for() => self.carry_out_move(until),
                _ => self.carry_out_handover(until),
            };
        }
        self.look_at_speeds();
        self.look_at_plan();
        self.look_at_shares();
        self.look_at_latecomers();
        self.look_at_those_outside();
        match &self.settling {
            Some(settling) if settling.participants != members => self.start_settle(members),
            Some(settling)
                if settling.answers.len() == members.len()
                    && (!self.is_held() || self.handover_is_due() || self.is_closing()) =>
            {
                self.finish_settle();
            }
            Some(_) => {}
            None if self.settle_is_due(&members) => self.start_settle(members),
            None => {}
        }
        if !self.is_closing() {
            let through = self.state.ledger.through();
            // A member that has not yet taken part may still be catching up.
            self.heal_waiting(|peer| {
                peer.is_present_member() && peer.next_round.is_none_or(|next| next >= through)
            });
        }
    }

    fn settle_is_due(&self, members: &BTreeSet<WorkerId>) -> bool {
        let Some(generation) = &self.state.generation else { return false };
        let complete = generation.members().all(|member| members.contains(&member.worker));
        let moved = self.moves_are_told_at().is_some_and(|at| at <= self.now);
        let joiner = !self.is_closing() && self.joiners_are_due_at().is_some_and(|at| at <= self.now);
        // A coordinator that stopped in the middle of a settle has members that wait for its end.
        let interrupted = self.state.announced > generation.generation;
        let backlog = self.backlog_settle_at().is_some_and(|at| at <= self.now);
        !complete
            || moved
            || joiner
            || interrupted
            || backlog
            || self.drain_is_due()
            || self.move_is_due()
            || self.handover_is_due()
            || self.together_is_due()
            || self.pace_is_due()
            || self.shares.are_due()
            || self.checkpoint_is_due()
            || self.pause_is_due()
    }

    /// When a generation begins with those who are ready: at once, or where others heal a little later, so that a site that comes back does so as a whole. None: nobody is.
    pub(super) fn joiners_are_due_at(&self) -> Option<Duration> {
        let ready = self.ready_replicas();
        let ready_at = |worker: &WorkerId| Some(self.peers.get(worker)?.ready_at);
        // A copy is ready when the last of it is.
        let first = ready.iter().filter_map(|workers| workers.iter().filter_map(ready_at).max()).min()?;
        let others_heal = self.peers.values().any(|peer| peer.standing == Standing::Healing);
        Some(if others_heal { first + Duration::from_millis(JOINERS_WAIT_MS) } else { first })
    }

    fn drain_is_due(&self) -> bool {
        self.state.drain && self.state.phase == Phase::Training
    }

    /// When a generation begins only to give lost samples out again.
    pub(super) fn backlog_settle_at(&self) -> Option<Duration> {
        let until = self.state.until().filter(|_| self.state.phase == Phase::Training)?;
        let useful = self.state.ledger.pending() > 0 && self.computing().next() < until && !self.is_closing();
        useful.then(|| self.begun_at + Duration::from_millis(BACKLOG_WAIT_MS))
    }

    fn start_settle(&mut self, participants: BTreeSet<WorkerId>) {
        self.state.announced = self.state.announced.next();
        let generation = self.state.announced;
        // No number is announced twice, also by a coordinator that is restarted right now.
        self.persist();
        for &worker in &participants {
            self.send(worker, ToWorker::Settle { generation });
        }
        self.settling = Some(Settling { generation, participants, answers: BTreeMap::new() });
    }

    pub(super) fn handle_settled(&mut self, connection: ConnectionId, worker: WorkerId, settled: Settled) {
        let Some(until) = self.state.until() else { return };
        let rank = self.rank_of(worker).unwrap_or_default();
        let fragments = self.layout_of(rank).count() as usize;
        if settled.open_round > until || settled.computing > until || settled.results.len() > fragments {
            return self.violation(connection, "settled for rounds or fragments that do not exist");
        }
        if let Some(settling) = &mut self.settling
            && settling.generation == settled.generation
            && settling.participants.contains(&worker)
        {
            settling.answers.insert(worker, settled);
        }
    }

    fn finish_settle(&mut self) {
        let (Some(settling), Some(mut old)) = (self.settling.take(), self.state.generation.clone()) else {
            return;
        };
        let Some(outcomes) = self.outcomes(&old, &settling) else { return self.lose_members() };
        let first_round = outcomes.iter().map(|outcome| outcome.first_round).max().unwrap_or(old.until);
        // Who computes the last round begins no other.
        let first_round = first_round.min(old.until);
        let open_rounds: Vec<Round> = outcomes.iter().map(|outcome| outcome.settlement.open_round).collect();
        let open_round = open_rounds.iter().copied().min().unwrap_or(first_round);
        self.tell_open_rounds(&outcomes, old.until);
        self.state.releases.settled();
        self.distrust_joiners(&open_rounds);
        self.undo_from(open_round, first_round, &settling.participants);
        for (rank, outcome) in (0..).zip(&outcomes) {
            let open = outcome.settlement.open_round;
            // A round whose results all count is made by nobody anew: who has applied it has what the others will.
            let remade = if outcome.is_whole { open.next() } else { open };
            self.state.rewinds.note((rank, self.ranks()), settling.generation, remade);
            self.summaries.reopen(open, rank);
        }
        self.fix_pace(&mut old, first_round);
        let ends =
            self.drain_is_due() || self.move_is_due() || self.handover_is_due() || self.together_is_due();
        let until = if ends { first_round } else { old.until };
        self.lose_shares(&old, &outcomes, first_round, &settling.participants);
        self.count_lost_residuals(&old, &settling.participants);

        let may_join = first_round < until && !self.state.drain;
        let mut replicas = self.replicas_where(|peer| peer.standing == Standing::Member);
        replicas.retain(|workers| workers.iter().all(|worker| settling.participants.contains(worker)));
        replicas.extend(self.ready_replicas().into_iter().filter(|_| may_join));
        if self.state.drain {
            self.state.phase = Phase::Draining;
        }
        let settlements = outcomes.into_iter().map(|outcome| Some(outcome.settlement)).collect();
        self.assemble(settling.generation, replicas, settlements, (first_round, until), open_round);
    }

    /// A member whose bits differ has no place in the generation until it has healed.
    pub(super) fn mend_parity(&mut self, verdict: &Verdict) {
        for &worker in &verdict.odd {
            let text = format!(
                "parity is broken: its state after {} differs from the others', it heals",
                verdict.round
            );
            self.notice(Severity::Error, Some(worker), text);
            self.parity.values_mut().for_each(|parity| parity.forget(worker));
            self.summaries.forget(worker);
            self.gone.insert(worker);
            let seat = self.peers.get(&worker).and_then(|peer| peer.seat);
            self.heal_again(worker);
            self.dissolve(seat);
        }
    }

    /// Whether the generation's members are as they are: in the grace after a restart, some may yet come back.
    fn grace_is_over(&mut self) -> bool {
        let Some(grace_until) = self.grace_until else { return true };
        let awaited: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| peer.is_awaited()).map(|(&worker, _)| worker).collect();
        if !awaited.is_empty() && (self.now < grace_until || self.only_awaited_hold_the_state()) {
            return false;
        }
        self.grace_until = None;
        for worker in awaited {
            self.gone.insert(worker);
            self.remove(worker, Severity::Warning, "did not come back in time");
        }
        true
    }

    /// Whether to give awaited members up would be to begin again with nothing: nobody who is here holds the run's state. They may be
    /// training still, cut off from the coordinator alone, so they are waited for until one of them is here, or others are enough for
    /// a run. One that was restarted is not awaited: it has lost its memory.
    fn only_awaited_hold_the_state(&self) -> bool {
        let here = self.peers.values().filter(|peer| peer.connection.is_some()).count();
        let none_of_them_is_here = self.present_members().is_empty();
        none_of_them_is_here
            && here < self.config.run.workers as usize
            && !self.state.drain
            && !self.suspending
            && self.nobody_holds_a_state()
    }

    /// Nobody of the generation is here. They may still train, and come back; if they cannot, the run's state is lost
    /// from memory.
    fn lose_members(&mut self) {
        self.settling = None;
        self.await_members();
        if self.grace_until.is_some() {
            return self.notice(
                Severity::Warning,
                None,
                "no member is connected; waiting for them to come back".to_owned(),
            );
        }
        self.state.rest();
        self.state.moving = None;
        self.is_short |= self.suspending;
        if self.state.drain {
            return self.finish("the last worker is gone; the newest checkpoints hold what was reached");
        }
        self.state.phase = Phase::Gathering;
        self.last_join = self.now;
        for peer in self.peers.values_mut().filter(|peer| peer.standing == Standing::Healing) {
            peer.standing = Standing::Waiting;
        }
        self.persist();
        self.notice(
            Severity::Warning,
            None,
            "all members are gone; gathering workers to go on from a checkpoint".to_owned(),
        );
    }

    /// Gives the generation's members some time to come back.
    pub(super) fn await_members(&mut self) {
        self.roll = None;
        let Some(generation) = &self.state.generation else { return };
        let is_lost =
            |member: &Member| self.gone.contains(&member.worker) || self.peers.contains_key(&member.worker);
        let whole = |replica: &&Replica| !replica.ranks.iter().any(is_lost);
        let replicas: Vec<Replica> = generation.replicas.iter().filter(whole).cloned().collect();
        for Replica { ranks, .. } in replicas {
            self.replicas_formed += 1;
            for (rank, member) in (0..).zip(ranks) {
                let Some(known) = self.state.workers.get(&member.worker) else { continue };
                let mut peer = Peer::new(known.clone(), None, self.now);
                peer.standing = Standing::Member;
                peer.has_data_to_tell = self.config.may_be_shared();
                peer.seat = Some(Seat { replica: self.replicas_formed, rank });
                self.peers.insert(member.worker, peer);
                self.grace_until =
                    Some(self.now + Duration::from_millis(self.config.faults.reconnect_grace_ms));
            }
        }
    }

    /// Why a run is over whose rounds before this one are done.
    fn words_of_end(&self, round: Round) -> String {
        let (schedule, steps) = (&self.state.schedule, self.state.schedule.steps);
        match schedule.steps_of(round).start {
            done if done < steps => format!("it was stopped after {done} of {steps} steps"),
            _ => "all rounds are applied".to_owned(),
        }
    }

    /// The end: everybody is dismissed.
    pub(super) fn finish(&mut self, why: &str) {
        let workers: Vec<WorkerId> = self.peers.keys().copied().collect();
        if let Some(until) = self.state.until() {
            for peer in self.peers.values_mut().filter(|peer| peer.standing == Standing::Member) {
                peer.next_round = Some(until);
            }
            self.count_rounds();
            self.lose_late(until);
            self.tell_shortfall(until);
        }
        let peers = self.peers.values();
        self.summaries.evaluated(
            peers.clone().filter_map(|peer| peer.validation_loss),
            peers.filter_map(|peer| peer.validation_accuracy),
        );
        self.state.last_snapshot = Some(self.last_snapshot());
        self.state.phase = Phase::Finished;
        self.preparing = None;
        self.settling = None;
        self.persist();
        for worker in workers {
            self.send(worker, ToWorker::Dismiss { reason: format!("the run is finished: {why}") });
            self.remove(worker, Severity::Info, "is dismissed");
        }
        self.notice(Severity::Info, None, format!("the run is finished: {why}"));
    }

    /// Rounds that went on without a member which is not here at the end are not in its books.
    pub(super) fn lose_late(&mut self, until: Round) {
        let Some(generation) = &self.state.generation else { return };
        let members = generation.replicas.iter().filter_map(|replica| Some(replica.ranks.first()?.worker));
        let is_here =
            |worker: &WorkerId| self.peers.get(worker).is_some_and(|peer| peer.standing == Standing::Member);
        let absent: Vec<WorkerId> = members.filter(|worker| !is_here(worker)).collect();
        let through = self.state.ledger.through();
        for worker in absent {
            let lost = self.state.late.departed(worker, until, through);
            self.lose(lost);
        }
    }

    /// Rounds from the open one on may be applied everywhere, and known to be: where all who were there then are gone, and those who survive joined lately and had not
    /// caught up. They make these rounds anew, and what the books say of them is void.
    fn undo_from(&mut self, open_round: Round, first_round: Round, survivors: &BTreeSet<WorkerId>) {
        if open_round >= self.state.ledger.through() {
            return;
        }
        self.state.ledger.undo(open_round, first_round);
        for (round, worker) in self.state.late.cut_back(open_round, survivors) {
            self.state.ledger.lose(round, worker);
        }
        self.parity.values_mut().for_each(|parity| parity.cut_back(open_round));
        self.state.milestones.retain(|round, _| *round <= open_round);
        self.summaries.cut_back(open_round);
        self.refusals.cut_back(open_round);
    }

    /// A run has so many steps. A share that a member skipped, or took along, is given out again in the place of other samples, so it
    /// ends with as many less.
    fn tell_shortfall(&mut self, until: Round) {
        let room = self.state.schedule.steps_of(until).start * u64::from(self.config.train.batch);
        let short = room.saturating_sub(self.state.ledger.counted().len());
        if short > 0 {
            let text = format!(
                "{short} of {room} samples were not trained on: rounds went on without members that were behind or gone"
            );
            self.notice(Severity::Info, None, text);
        }
    }
}
