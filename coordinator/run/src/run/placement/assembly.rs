//! Assembly of a generation: the outcome of the one before, the members, and their first round.

use std::collections::BTreeSet;
use std::sync::Arc;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::plan::{FragmentLayout, Member, Membership};
use longhaul_common::timeline::place_in;
use longhaul_proto::control::message::{ReplicaMembers, Settlement, ToWorker};
use longhaul_proto::round::settle::{Outcome, settle};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::generations::generation_config::{GenerationConfig, SyncGroup};
use crate::run::generations::settle::Settling;
use crate::run::machine::Run;
use crate::run::peer::Standing;

impl Core {
    /// Returns the outcome of each part of the model from the answers. `None`: a part has no holder left.
    pub(crate) fn outcomes(&self, old: &GenerationConfig, settling: &Settling) -> Option<Vec<Outcome>> {
        let settle_group = |(rank, group): (u32, &SyncGroup)| {
            let layout = self.layout_of(rank);
            let schedule = self.state.rounds.schedule.for_fragments(layout.count());
            settle(&group.membership, layout, schedule, &settling.answers)
        };
        (0..).zip(&old.groups).map(settle_group).collect()
    }

    /// Reports the outcome of a round that was open when a generation ended.
    pub(crate) fn tell_open_rounds(&mut self, outcomes: &[Outcome], until: Round) {
        for (rank, outcome) in (0..).zip(outcomes) {
            let (all, adopted) = (self.layout_of(rank).count(), outcome.settlement.results.len());
            let open_round = outcome.settlement.open_round;
            if open_round < until && adopted < all as usize {
                let part = if outcomes.len() > 1 { format!(", part {}", rank + 1) } else { String::new() };
                let text = format!(
                    "{open_round}{part}: the results of {adopted} of {all} fragments count; the others are void and are contributed again"
                );
                self.notice(Severity::Info, None, text);
            }
        }
    }

    /// Loses the shares given out for rounds up to the next generation's first to workers that have left, unless their contribution is
    /// in the open round's results of all parts of the model. Their late samples are lost too.
    pub(crate) fn lose_shares(
        &mut self,
        old: &GenerationConfig,
        outcomes: &[Outcome],
        first_round: Round,
        survivors: &BTreeSet<WorkerId>,
    ) {
        let opens = outcomes.iter().map(|outcome| outcome.settlement.open_round);
        let open = opens.clone().min().unwrap_or(first_round);
        let are_equal = opens.max() == Some(open);
        let first_undone = |worker: &WorkerId| {
            let undone = |(outcome, member): (&Outcome, &Member)| outcome.first_undone(member.site);
            match (old.replica_of(*worker).filter(|_| are_equal), outcomes) {
                (Some(replica), _) => outcomes.iter().zip(&replica.ranks).map(undone).min().unwrap_or(open),
                // It had left before: the adopted result may contain its share all the same.
                (None, [outcome]) => self
                    .state
                    .roster
                    .workers
                    .get(worker)
                    .map_or(open, |known| outcome.first_undone(known.site)),
                (None, _) => open,
            }
        };
        // A worker that came back as another process is a survivor without the earlier rounds.
        let has = |worker: &WorkerId, round: Round| {
            let was_there = round >= old.first_round || place_in(&old.active_before, *worker).is_some();
            survivors.contains(worker) && was_there
        };
        let mut lost = Vec::new();
        for round in (open.0..first_round.0).map(Round) {
            let departed =
                self.state.rounds.ledger.workers_in(round).iter().filter(|worker| !has(worker, round));
            lost.extend(
                departed.filter(|worker| round >= first_undone(worker)).map(|&worker| (round, worker)),
            );
        }
        let firsts = old.replicas.iter().filter_map(|replica| Some(replica.ranks.first()?.worker));
        // A worker that departed in a round without any holder departed before that round.
        let mut departed = self.state.rounds.late.departed_after(open);
        departed.extend(firsts);
        for worker in departed.into_iter().filter(|worker| !has(worker, open)) {
            if open < first_undone(&worker) && self.state.rounds.ledger.workers_in(open).contains(&worker) {
                self.state.rounds.late.counted(worker, open);
            } else {
                lost.extend(self.state.rounds.late.departed(
                    worker,
                    open,
                    self.state.rounds.ledger.through(),
                ));
            }
        }
        for (round, worker) in lost {
            self.state.rounds.ledger.lose(round, worker);
        }
    }

    /// Whether all write a checkpoint after the first round of this generation: one was requested, or the generation before was to have one and ended earlier.
    fn takes_checkpoint(&mut self, lineup: &GenerationConfig) -> bool {
        let before = self
            .state
            .generations
            .present
            .as_ref()
            .filter(|old| self.state.checkpoints.due_in == Some(old.generation));
        let is_owed = before.is_some_and(|old| self.state.rounds.ledger.through() <= old.first_round);
        let asked = std::mem::take(&mut self.state.checkpoints.is_asked) || is_owed;
        asked && lineup.first_round < lineup.until
    }

    /// Returns the cut of a part of the model. Known once a worker has built it.
    pub(crate) fn layout_of(&self, rank: u32) -> FragmentLayout {
        let facts = self.state.lineage.facts.as_ref();
        let values = facts.and_then(|facts| facts.parameters.get(rank as usize).copied()).unwrap_or_default();
        self.config.sync.layout(values)
    }

    /// Fragments of the part of the model that has the fewest.
    pub(crate) fn fragments_min(&self) -> u32 {
        (0..self.ranks()).map(|rank| self.layout_of(rank).count()).min().unwrap_or_default()
    }
}

impl Run {
    /// Assembles a generation and begins it: `rounds` are the first common one, and the end; assignments are needed from `open_round` on.
    pub(crate) fn assemble(
        &mut self,
        generation: Generation,
        mut replicas: Vec<Vec<WorkerId>>,
        settlements: Vec<Option<Settlement>>,
        rounds: (Round, Round),
        open_round: Round,
    ) {
        let (first_round, until) = rounds;
        replicas.sort_unstable();
        let was_there = |worker: &WorkerId| {
            self.core.peers.get(worker).is_some_and(|peer| peer.standing == Standing::Member)
        };
        let members_of = |workers: &[WorkerId]| -> Vec<Member> {
            workers.iter().filter_map(|worker| Some(self.core.peers.get(worker)?.member(*worker))).collect()
        };
        let is_settled = settlements.iter().any(Option::is_some);
        let everybody = replicas.iter().flatten().copied();
        let active_before: BTreeSet<WorkerId> =
            everybody.filter(|worker| is_settled && was_there(worker)).collect();
        let groups = (0..).zip(settlements).map(|(rank, settlement)| {
            let held: Vec<WorkerId> =
                replicas.iter().filter_map(|workers| workers.get(rank as usize).copied()).collect();
            let layout = self.core.layout_of(rank);
            let schedule = self.core.state.rounds.schedule.for_fragments(layout.count());
            let turns = schedule.last_pace().groups;
            let membership = Membership::assign(generation, members_of(&held), layout, turns);
            SyncGroup { membership, settlement }
        });
        let groups = groups.collect();
        let session_of = |workers: &[WorkerId]| {
            let lineup = self.core.state.generations.present.as_ref()?;
            let replica = lineup.replica_led_by(*workers.first()?)?;
            let same = replica.ranks.iter().map(|member| member.worker).eq(workers.iter().copied());
            (same && workers.iter().all(was_there)).then_some(replica.session)
        };
        let replica = |workers: &Vec<WorkerId>| ReplicaMembers {
            session: session_of(workers).unwrap_or(generation),
            ranks: members_of(workers),
        };
        let replicas: Vec<ReplicaMembers> = replicas.iter().map(replica).collect();
        let firsts = replicas.iter().filter_map(|replica| Some(replica.ranks.first()?.worker));
        self.planning.share_out(&mut self.core, first_round, firsts.collect());
        self.begin(GenerationConfig {
            generation,
            groups,
            replicas,
            first_round,
            active_before: active_before.into_iter().collect(),
            assignments: self.core.state.rounds.ledger.assignments_from(open_round),
            until,
            schedule: self.core.state.rounds.schedule,
        });
    }

    /// Begins a generation: persists it, then announces it.
    fn begin(&mut self, lineup: GenerationConfig) {
        let members: Vec<Member> = lineup.members().cloned().collect();
        let sites: BTreeSet<_> = members.iter().map(|member| member.site).collect();
        let copies = match self.core.ranks() {
            1 => String::new(),
            stages => format!(", {} copies of the model in {stages} parts,", lineup.replicas.len()),
        };
        let text = format!(
            "{} begins with {} workers{copies} on {} sites at {}",
            lineup.generation,
            members.len(),
            sites.len(),
            lineup.first_round
        );
        let checkpoint = self.core.takes_checkpoint(&lineup);
        self.core.state.checkpoints.due_in = checkpoint.then_some(lineup.generation);
        self.core.state.generations.present = Some(lineup.clone());
        self.generations.begin(self.core.now);
        self.core.members_changed();
        self.core.persist();
        let common = lineup.common_start(checkpoint);
        for Member { worker, .. } in members {
            if let Some(peer) = self.core.peers.get_mut(&worker) {
                peer.standing = Standing::Member;
                peer.start.heals = 0;
            }
            let own = || lineup.start_of(worker, checkpoint).map(Arc::new);
            if let Some(start) = common.clone().or_else(own) {
                self.core.send(worker, ToWorker::Begin(start));
            }
        }
        self.core.tell_best();
        self.core.notice(Severity::Info, None, text);
    }
}

impl Core {
    /// Sends joiners back where their state may contain rounds that are repeated: those from a part's open round on that no survivor has
    /// completed. The donor may have been a member that had, and has left.
    pub(crate) fn distrust_joiners(&mut self, open_rounds: &[Round]) {
        let mut stale = Vec::new();
        for (&worker, peer) in &mut self.peers {
            let Some(slot) = peer.slot else { continue };
            let Some(&open_round) = open_rounds.get(slot.rank as usize) else { continue };
            if matches!(peer.standing, Standing::Healing | Standing::Ready) {
                peer.start.reopened =
                    Some(peer.start.reopened.map_or(open_round, |earlier| earlier.min(open_round)));
            }
            if peer.standing == Standing::Ready && peer.holds_undone() {
                stale.push(worker);
            }
        }
        stale.into_iter().for_each(|worker| self.send_back_to_heal(worker));
    }
}
