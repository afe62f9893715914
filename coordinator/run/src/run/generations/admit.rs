//! Admission of a worker: joining, resuming, and the proof that it trains the same model on the same data.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::{SITE_CHARS_MAX, is_site_name};
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{
    CHECKPOINT_OFFERS_MAX, CheckpointOffer, Join, Ready, ToWorker, Welcome,
};

use crate::run::command::{Command, Severity};
use crate::run::core::{Core, shorten};
use crate::run::event::ConnectionId;
use crate::run::generations::Generations;
use crate::run::generations::generation_config::GenerationConfig;
use crate::run::liveness::silence::Silence;
use crate::run::machine::Run;
use crate::run::peer::{Peer, Standing, resolve, site_number};
use crate::run::recovery::checkpoint_replication::names_a_part;
use crate::run::state::{Facts, Known, Phase};

/// Most sites of a run: each contributes to every fragment, and the protocol's cost grows with their number.
const SITES_MAX: usize = 1024;
/// Unsuccessful heals before a worker is refused: more would not help it.
const HEALS_MAX: u32 = 3;

/// The offers of a join that count.
fn offers_of<'a>(checkpoints: impl Iterator<Item = &'a CheckpointOffer>) -> Vec<CheckpointOffer> {
    checkpoints.filter(|offer| names_a_part(offer)).take(CHECKPOINT_OFFERS_MAX).cloned().collect()
}

impl Run {
    pub(crate) fn handle_join(
        &mut self,
        connection: ConnectionId,
        worker: WorkerId,
        address: IpAddr,
        join: Join,
    ) {
        if let Some(reason) = self.generations.reason_to_refuse(&self.core, worker, &join) {
            self.core.reply(connection, ToWorker::Refused { reason: reason.clone() });
            self.core.notice(Severity::Warning, Some(worker), format!("was refused: {reason}"));
            return self.core.close(connection, "refused");
        }
        if let Some(joining) = self.core.connections.get_mut(&connection) {
            joining.joined = true;
        }
        let sites_before = self.core.state.roster.sites.len();
        let known = Known {
            incarnation: join.incarnation,
            site: site_number(&mut self.core.state.roster.sites, &join.site),
            lan_address: resolve(join.lan_address, address),
            wan_address: resolve(join.wan_address, address),
            device: shorten(&join.device),
            memory_bytes: join.memory_bytes,
            host_memory_bytes: join.host_memory_bytes,
            flops_per_s: self.core.state.roster.workers.get(&worker).and_then(|known| known.flops_per_s),
        };
        if self.resume(connection, worker, &join, &known) {
            if self.generations.suspending {
                self.let_all_go();
            }
            return;
        }
        if self.generations.suspending {
            let reason = "the run stops for now: it goes on when its coordinator is started again";
            return self.core.close(connection, reason);
        }
        if self.core.peers.contains_key(&worker) {
            self.generations.gone.insert(worker);
            self.remove(worker, Severity::Warning, Command::RESTARTED);
        }
        let site = known.site;
        let mut peer = Peer::new(known.clone(), Some(connection), self.core.now);
        peer.checkpoints.offers = offers_of(join.checkpoints.iter());
        self.core.peers.insert(worker, peer);
        if self.core.config.is_plan_open() {
            self.planning.joined(worker, site, (join.memory_bytes, join.host_memory_bytes));
        }
        self.listen_for_silence();
        self.planning.forget_unfit();
        self.generations.last_join = self.core.now;
        if self.core.state.roster.workers.insert(worker, known).is_none() {
            let text = format!("joined from site {} ({})", join.site, shorten(&join.device));
            self.core.notice(Severity::Info, Some(worker), text);
        } else {
            self.core.notice(Severity::Info, Some(worker), format!("joined again from site {}", join.site));
        }
        self.accounting.note_slow_joiner(
            &mut self.core,
            worker,
            join.too_late_ms.map(|ms| Duration::from_millis(ms.into())),
        );
        // A restarted coordinator repeats everything to non-members; but site numbers are in circulation.
        if self.core.state.roster.sites.len() > sites_before {
            self.core.persist();
        }
        let config = self.planning.config_for(&mut self.core, worker);
        self.core.send(
            worker,
            ToWorker::Welcome(Welcome { run: self.core.state.run, config, site, resumed: false }),
        );
        self.core.tell_revoked(worker);
        // Before any order that makes it write a checkpoint, and prune others.
        self.core.tell_best_to(worker);
        if self.core.state.phase == Phase::Finished {
            self.core.send(worker, ToWorker::Dismiss { reason: "the run is finished".to_owned() });
            self.remove(worker, Severity::Info, "joined after the end of the run");
        }
    }

    /// A member that lost its connection alone goes on unchanged.
    fn resume(&mut self, connection: ConnectionId, worker: WorkerId, join: &Join, known: &Known) -> bool {
        let Some((held, _)) = join.held else { return false };
        let same = |peer: &&mut Peer| {
            peer.standing == Standing::Member
                && peer.known.incarnation == join.incarnation
                && peer.known.site == known.site
        };
        let Some(peer) = self.core.peers.get_mut(&worker).filter(same) else { return false };
        let replaced = peer.connection.replace(connection);
        let has_moved = !peer.known.is_at(known.lan_address, known.wan_address);
        peer.known = known.clone();
        // Its answer about a copy may have been lost with the connection, and its checkpoint reports with an earlier coordinator.
        peer.checkpoints.is_keeping = false;
        peer.checkpoints.offers = offers_of(join.checkpoints.iter());
        // An absence proves nothing about its link.
        peer.silence = Silence::new(self.core.now);
        self.listen_for_silence();
        if let Some(replaced) = replaced {
            self.core.close(replaced, Command::REPLACED);
        }
        let welcome = Welcome {
            run: self.core.state.run,
            config: self.core.config_toml.clone(),
            site: known.site,
            resumed: true,
        };
        self.core.state.roster.workers.insert(worker, known.clone());
        self.core.send(worker, ToWorker::Welcome(welcome));
        self.core.tell_revoked(worker);
        self.core.notice(Severity::Info, Some(worker), "is back, and goes on".to_owned());
        if has_moved {
            self.liveness.note_move(&mut self.core, worker, known.wan_address);
        }
        // Messages in flight when the connection broke are repeated.
        let newer = self.core.state.generations.present.as_ref().filter(|lineup| held < lineup.generation);
        let start_of = |lineup: &GenerationConfig| {
            lineup.start_of(worker, self.core.state.checkpoints.due_in == Some(lineup.generation))
        };
        if let Some(start) = newer.and_then(start_of) {
            self.core.send(worker, ToWorker::Begin(Arc::new(start)));
        }
        self.core.tell_best_to(worker);
        if let Some(generation) =
            self.generations.settling.as_ref().and_then(|settling| settling.unanswered_by(worker))
        {
            self.core.send(worker, ToWorker::Settle { generation });
        }
        true
    }

    pub(crate) fn handle_ready(&mut self, worker: WorkerId, ready: Ready) {
        // A report about an earlier part is void.
        let Some(rank) = self.core.rank_of(worker).filter(|rank| *rank == ready.rank) else { return };
        if let Some(expected) = &self.core.state.lineage.facts
            && let Some(difference) = difference(expected, rank, &ready)
        {
            return self.refuse(worker, &difference);
        }
        let in_training = matches!(self.core.state.phase, Phase::Training | Phase::Draining);
        let Some(peer) = self.core.peers.get_mut(&worker) else { return };
        if !matches!(peer.standing, Standing::Preparing | Standing::Healing) {
            return;
        }
        let stale = |preparing: &crate::run::generations::prepare::Preparing| !preparing.asked_for(&ready);
        if peer.standing == Standing::Preparing && self.generations.preparing.as_ref().is_some_and(stale) {
            return;
        }
        let (next_round, hash) = (ready.next_round, ready.state_hash);
        peer.standing = Standing::Ready;
        peer.progress.next_round = Some(next_round);
        (peer.start.ready, peer.start.ready_at) = (Some(ready), self.core.now);
        let is_undone = peer.holds_undone();
        if let Some(preparing) = &mut self.generations.preparing {
            preparing.heard(worker);
        }
        if in_training && is_undone {
            return self.core.send_back_to_heal(worker);
        }
        if in_training {
            // Its state after a round can be compared with the members' state there.
            let last = next_round.0.checked_sub(1).map(Round);
            let expected =
                last.zip(self.accounting.parity_of(rank)).and_then(|(last, parity)| parity.hash_after(last));
            if expected.is_some_and(|expected| expected != hash) {
                self.heal_again(worker);
            }
        }
    }

    /// A worker with a differing state heals; after some attempts it is refused.
    pub(crate) fn heal_again(&mut self, worker: WorkerId) {
        let Some(peer) = self.core.peers.get_mut(&worker) else { return };
        peer.start.heals += 1;
        if peer.start.heals > HEALS_MAX {
            let reason = format!(
                "its state differs from the others' after {HEALS_MAX} attempts to heal; look for faulty memory or a \
                 different build of worker or libtorch there"
            );
            return self.refuse(worker, &reason);
        }
        self.core.send_back_to_heal(worker);
    }

    pub(crate) fn refuse(&mut self, worker: WorkerId, reason: &str) {
        self.core.send(worker, ToWorker::Refused { reason: reason.to_owned() });
        self.generations.gone.insert(worker);
        self.remove(worker, Severity::Error, &format!("was refused: {reason}"));
    }
}

impl Generations {
    fn reason_to_refuse(&self, core: &Core, worker: WorkerId, join: &Join) -> Option<String> {
        if core.state.roster.revoked.contains(&worker) {
            return Some("this worker was taken out of the run, and its certificate is revoked".to_owned());
        }
        let site = join.site.trim();
        if !is_site_name(site) {
            return Some(format!("the site's name must have 1 to {SITE_CHARS_MAX} printable characters"));
        }
        if core.state.roster.sites.len() >= SITES_MAX && !core.state.roster.sites.contains(&join.site) {
            return Some(format!("the run has {SITES_MAX} sites already"));
        }
        // Overdue members block no slot: others may have to take their place.
        let overdue = self.grace_until.is_some_and(|until| until <= core.now);
        let counts = |other: WorkerId, peer: &Peer| other != worker && !(overdue && peer.is_awaited());
        // Where the coordinator makes the plan, it makes another one that includes workers from other sites.
        let names = Some(&core.config.parallel.sites).filter(|_| core.replan_after().is_none());
        if let Some(names) = names.filter(|names| !names.is_empty() && !names.contains(&join.site)) {
            return Some(format!(
                "parallel.sites assigns parts of the model to {names:?} only, and this worker is at {site:?}"
            ));
        }
        let batch = core.config.train.batch;
        let most = batch as usize * core.ranks() as usize;
        // Counted only where it may matter: many workers join one after the other.
        if core.peers.len() < most {
            return None;
        }
        let others = core.peers.iter().filter(|(other, peer)| counts(**other, peer)).count();
        (others >= most).then(|| {
            format!("a step has train.batch = {batch} sequences, already divided among {others} workers")
        })
    }
}

impl Core {
    /// Has a worker heal from the workers then present: its state became useless through no fault of its own.
    pub(crate) fn send_back_to_heal(&mut self, worker: WorkerId) {
        self.members_changed();
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        peer.standing = Standing::Waiting;
        peer.start.ready = None;
        (peer.progress.next_round, peer.progress.complete) = (None, None);
        peer.start.donors.clear();
    }
}

/// Returns the change that a worker needs to take part with this part of the model; `None`: it agrees.
pub(crate) fn difference(expected: &Facts, rank: u32, found: &Ready) -> Option<String> {
    // After a new cut of the model, the parts' sizes are unknown.
    let parameters = expected.parameters.get(rank as usize).copied();
    if let Some(parameters) = parameters.filter(|parameters| *parameters != found.parameters) {
        return Some(format!(
            "its model has {} parameters, the run's has {parameters}: check that it has the same tokenizer",
            found.parameters
        ));
    }
    if found.samples != expected.samples {
        return Some(format!(
            "its training data has {} samples, the run's has {}: check that data.path is the same file there",
            found.samples, expected.samples
        ));
    }
    let (known, own) = (&expected.evaluation, &found.evaluation);
    let differing = [
        (
            found.data_hash != expected.data_hash,
            "its training data differs from the run's: check that data.path (or --data) is the same file there",
        ),
        (
            own.held_out != known.held_out,
            "its held-out data differs from the run's, and losses of other samples cannot be compared: check that the files of data.validation are the same there; a fork may have others (coordinator fork)",
        ),
        (
            own.questions != known.questions,
            "its questions differ from the run's, and scores of others cannot be compared: check that the files of evaluate.tasks are the same there; a fork may have others (coordinator fork)",
        ),
    ];
    differing.into_iter().find(|(differs, _)| *differs).map(|(_, reason)| reason.to_owned())
}
