//! Training as a sequence of generations: when one ends, how it settles, how the next begins, and how it all ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::plan::{FragmentLayout, Membership};
use longhaul_proto::control::message::{GenerationStart, Settled, ToWorker};
use longhaul_proto::round::settle::{Outcome, settle};

use super::command::Severity;
use super::event::ConnectionId;
use super::machine::Run;
use super::parity::Verdict;
use super::peer::{Peer, Standing};
use super::state::Phase;

/// How long lost samples wait for a generation that begins for another reason, in milliseconds: a settle costs every
/// member a round trip, and a link that is slow enough to skip rounds skips many.
const BACKLOG_WAIT_MS: u64 = 10_000;

/// A generation that ends.
#[derive(Clone, Debug)]
pub(super) struct Settling {
    /// The one that will start.
    generation: Generation,
    /// Members of the old one that are still there.
    participants: BTreeSet<WorkerId>,
    answers: BTreeMap<WorkerId, Settled>,
}

impl Settling {
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
        let members: BTreeSet<WorkerId> = self.present_members().into_iter().collect();
        if members.is_empty() {
            return self.lose_members();
        }
        let Some(until) = self.state.until() else { return };
        let has_finished = |peer: &Peer| peer.finished.is_some_and(|next| next >= until);
        if members.iter().all(|worker| self.peers.get(worker).is_some_and(has_finished))
            && !self.drain_is_due()
        {
            return self.finish("all rounds are applied");
        }
        match &self.settling {
            Some(settling) if settling.participants != members => self.start_settle(members),
            Some(settling) if settling.answers.len() == members.len() => self.finish_settle(),
            Some(_) => {}
            None if self.settle_is_due(&members) => self.start_settle(members),
            None => {}
        }
        if !self.is_closing() {
            self.heal_waiting(&self.donors());
        }
    }

    fn settle_is_due(&self, members: &BTreeSet<WorkerId>) -> bool {
        let Some(generation) = &self.state.generation else { return false };
        let complete = generation.membership.members().iter().all(|member| members.contains(&member.worker));
        let joiner = !self.is_closing() && self.peers.values().any(|peer| peer.standing == Standing::Ready);
        // A coordinator that stopped in the middle of a settle has members that wait for its end.
        let interrupted = self.state.announced > generation.membership.generation;
        let backlog = self.backlog_settle_at().is_some_and(|at| at <= self.now);
        !complete || joiner || interrupted || backlog || self.drain_is_due() || self.pace_is_due()
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

    /// Members that hold the state. A member that has not yet taken part may still be catching up.
    fn donors(&self) -> Vec<WorkerId> {
        let through = self.state.ledger.through();
        let holds =
            |peer: &Peer| peer.is_present_member() && peer.next_round.is_none_or(|next| next >= through);
        self.peers.iter().filter(|(_, peer)| holds(peer)).map(|(&worker, _)| worker).collect()
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
        let fragments = self.layout().count() as usize;
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
        let layout = self.layout();
        let schedule = self.state.schedule.for_fragments(layout.count());
        let Some(mut outcome) = settle(&old.membership, layout, schedule, &settling.answers) else {
            return self.lose_members();
        };
        // Who computes the last round begins no other.
        outcome.first_round = outcome.first_round.min(old.until);
        let (open_round, first_round) = (outcome.settlement.open_round, outcome.first_round);
        self.state.releases.settled();
        self.distrust_joiners(open_round);
        self.fix_pace(&mut old, first_round);
        let until = if self.drain_is_due() { first_round } else { old.until };
        self.lose_shares(&old.membership, &outcome, &settling.participants);

        let joins =
            |peer: &Peer| peer.standing == Standing::Ready && first_round < until && !self.state.drain;
        let joiners = self.peers.iter().filter(|(_, peer)| joins(peer)).map(|(&worker, _)| worker);
        let active_before = settling.participants.iter().copied().collect();
        let workers: BTreeSet<WorkerId> = settling.participants.iter().copied().chain(joiners).collect();
        let members =
            workers.iter().filter_map(|worker| Some(self.peers.get(worker)?.member(*worker))).collect();
        self.state.ledger.assign(first_round, workers.into_iter().collect());
        if self.state.drain {
            self.state.phase = Phase::Draining;
        }
        self.begin(GenerationStart {
            membership: Membership::assign(settling.generation, members, self.layout()),
            settlement: Some(outcome.settlement),
            first_round,
            active_before,
            assignments: self.state.ledger.assignments_from(open_round),
            until,
            schedule: self.state.schedule,
        });
    }

    /// Rounds from `open_round` on are done again where no survivor has completed them. A worker that heals may have its
    /// state from a member that had, and is gone.
    fn distrust_joiners(&mut self, open_round: Round) {
        let mut stale = Vec::new();
        for (&worker, peer) in &mut self.peers {
            if matches!(peer.standing, Standing::Healing | Standing::Ready) {
                peer.reopened = Some(peer.reopened.map_or(open_round, |earlier| earlier.min(open_round)));
            }
            if peer.standing == Standing::Ready && peer.holds_undone() {
                stale.push(worker);
            }
        }
        stale.into_iter().for_each(|worker| self.send_back_to_heal(worker));
    }

    /// Whatever was given out for rounds up to the next generation's first, to workers that are no longer there, is
    /// lost, unless their contribution is in the open round's result already. So is what was late of theirs.
    fn lose_shares(&mut self, old: &Membership, outcome: &Outcome, survivors: &BTreeSet<WorkerId>) {
        let open = outcome.settlement.open_round;
        let first_undone = |worker: &WorkerId| {
            self.state.workers.get(worker).map_or(open, |known| outcome.first_undone(known.site))
        };
        let mut lost = Vec::new();
        for round in (open.0..outcome.first_round.0).map(Round) {
            let departed =
                self.state.ledger.workers_in(round).iter().filter(|worker| !survivors.contains(worker));
            lost.extend(
                departed.filter(|worker| round >= first_undone(worker)).map(|&worker| (round, worker)),
            );
        }
        for worker in old.members().iter().map(|member| member.worker).filter(|w| !survivors.contains(w)) {
            if open < first_undone(&worker) && self.state.ledger.workers_in(open).contains(&worker) {
                self.state.late.counted(worker, open);
            } else {
                lost.extend(self.state.late.departed(worker, open, self.state.ledger.through()));
            }
        }
        for (round, worker) in lost {
            self.state.ledger.lose(round, worker);
        }
    }

    /// Starts a generation: durable first, then told.
    pub(super) fn begin(&mut self, start: GenerationStart) {
        let members: Vec<WorkerId> = start.membership.members().iter().map(|member| member.worker).collect();
        let text = format!(
            "{} begins with {} workers on {} sites at {}",
            start.membership.generation,
            members.len(),
            start.membership.sites().count(),
            start.first_round
        );
        self.state.generation = Some(start.clone());
        self.begun_at = self.now;
        self.gone.clear();
        self.persist();
        for &worker in &members {
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.standing = Standing::Member;
                peer.heals = 0;
            }
            self.send(worker, ToWorker::Begin(Box::new(start.clone())));
        }
        self.notice(Severity::Info, None, text);
    }

    /// A member whose bits differ has no place in the generation until it has healed.
    pub(super) fn mend_parity(&mut self, verdict: &Verdict) {
        for &worker in &verdict.odd {
            let text = format!(
                "parity is broken: its state after {} differs from the others', it heals",
                verdict.round
            );
            self.notice(Severity::Error, Some(worker), text);
            self.parity.forget(worker);
            self.gone.insert(worker);
            self.heal_again(worker);
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
        self.state.generation = None;
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
        let Some(generation) = &self.state.generation else { return };
        for member in generation.membership.members() {
            let lost = self.gone.contains(&member.worker) || self.peers.contains_key(&member.worker);
            if let Some(known) = self.state.workers.get(&member.worker).filter(|_| !lost) {
                let mut peer = Peer::new(known.clone(), None, self.now);
                peer.standing = Standing::Member;
                self.peers.insert(member.worker, peer);
                self.grace_until =
                    Some(self.now + Duration::from_millis(self.config.faults.reconnect_grace_ms));
            }
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
        self.summaries.evaluated(self.peers.values().filter_map(|peer| peer.validation_loss));
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
    fn lose_late(&mut self, until: Round) {
        let Some(generation) = &self.state.generation else { return };
        let members = generation.membership.members().iter().map(|member| member.worker);
        let is_here =
            |worker: &WorkerId| self.peers.get(worker).is_some_and(|peer| peer.standing == Standing::Member);
        let absent: Vec<WorkerId> = members.filter(|worker| !is_here(worker)).collect();
        let through = self.state.ledger.through();
        for worker in absent {
            let lost = self.state.late.departed(worker, until, through);
            self.lose(lost);
        }
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

    /// How the model is cut. Known as soon as somebody has built it.
    pub(super) fn layout(&self) -> FragmentLayout {
        let values = self.state.facts.map_or(0, |facts| facts.parameters);
        FragmentLayout { values, fragment_values: self.config.sync.fragment_values }
    }
}
