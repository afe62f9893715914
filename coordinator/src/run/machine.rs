//! The run's state machine: who may say what, and where it is handled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::{
    CheckpointOffer, CheckpointReport, SIGNS_MAX, ToCoordinator, ToWorker,
};
use serde::{Deserialize, Serialize};

use super::absent_holders::AbsentHolders;
use super::addresses::Moves;
use super::audits::Audits;
use super::command::{Command, Notice, Record, Severity};
use super::departures::Departures;
use super::event::{ConnectionId, Event};
use super::generation::Settling;
use super::handovers::Handovers;
use super::latecomers::Latecomers;
use super::pace::Watch;
use super::parity::Parity;
use super::peer::{Peer, Standing};
use super::planning::WorkedOut;
use super::prepare::Preparing;
use super::progress::{Summaries, share};
use super::reach::Reach;
use super::refusals::Refusals;
use super::replanning::Replanning;
use super::reports::Roll;
use super::shares::Shares;
use super::speeds::Speeds;
use super::state::{Checkpoint, Phase, State};
use super::survey::Surveys;
use super::together::Together;

/// Notices kept for the status page.
const NOTICES_KEPT: usize = 50;
/// Checkpoints kept for the status page, besides the newest of each worker that is here.
const CHECKPOINTS_KEPT: usize = 32;

/// One run, without clock, socket or disk.
///
/// Call [`Run::handle`] with every event and with the time of it, execute what it returns in order, and call it with
/// [`Event::Timer`] when [`Run::next_timeout`] has come. Times are on any one clock that does not go back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    #[serde(with = "super::as_toml")]
    pub(super) config: RunConfig,
    pub(super) config_toml: String,
    pub(super) state: State,
    pub(super) now: Duration,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    pub(super) peers: BTreeMap<WorkerId, Peer>,
    pub(super) preparing: Option<Preparing>,
    pub(super) settling: Option<Settling>,
    /// Until then awaited members may come back.
    pub(super) grace_until: Option<Duration>,
    /// Members of the generation that cannot come back as such.
    pub(super) gone: BTreeSet<WorkerId>,
    /// Those who were here since this coordinator was started, and are not any more.
    pub(super) departures: Departures,
    pub(super) latecomers: Latecomers,
    pub(super) handovers: Handovers,
    pub(super) absent_holders: AbsentHolders,
    /// All are to leave, and nobody new comes in. A coordinator that is started again knows nothing of it: the run goes on then.
    pub(super) suspending: bool,
    /// Meanwhile something was lost that had been trained.
    pub(super) is_short: bool,
    pub(super) together: Together,
    pub(super) moves: Moves,
    pub(super) last_join: Duration,
    pub(super) begun_at: Duration,
    /// By rank.
    pub(super) parity: BTreeMap<u32, Parity>,
    /// Copies of the model that were ever put together.
    pub(super) replicas_formed: u64,
    /// What was said of those who are here, for whom no plan fits.
    pub(super) unfit: Option<String>,
    /// What those who are here have told for a plan; nothing, once there is one.
    pub(super) surveys: Surveys,
    pub(super) worked_out: WorkedOut,
    pub(super) replanning: Replanning,
    /// A copy of a checkpoint could not be had, and people were told.
    pub(super) copy_failed: bool,
    pub(super) summaries: Summaries,
    pub(super) refusals: Refusals,
    pub(super) audits: Audits,
    /// Of what members measure, for the pace of rounds.
    pub(super) watch: Watch,
    pub(super) shares: Shares,
    pub(super) speeds: Speeds,
    pub(super) notices: VecDeque<Notice>,
    /// When to look for those that have been silent for too long, at the latest; none: nobody is connected.
    pub(super) silence_at: Option<Duration>,
    pub(super) reach: Reach,
    /// Who has the run's data may be others than were told.
    pub(super) data_moved: bool,
    /// People were told that nobody has it.
    pub(super) told_no_data: bool,
    /// When to look again, if nothing happens before.
    next_due: Option<Duration>,
    /// What reports of rounds are counted against, until somebody comes, goes or changes.
    pub(super) roll: Option<Roll>,
    pub(super) persisted_at: Duration,
    #[serde(skip)]
    pub(super) commands: Vec<Command>,
}

/// A control connection: a worker that has proved who it is, and may have joined.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Connection {
    pub worker: WorkerId,
    pub address: IpAddr,
    pub joined: bool,
}

impl Run {
    /// A run from its durable state: a new one is [`State::new`], and one that a coordinator left behind goes on.
    ///
    /// # Errors
    /// When the configuration holds a path that TOML cannot write.
    pub fn new(mut config: RunConfig, mut state: State, now: Duration) -> Result<Self, toml::ser::Error> {
        if let Some(decided) = &state.plan {
            decided.apply_to(&mut config);
        }
        // A run that was extended had its opening and its early part: those are no shares of all its steps.
        if let Some(first) = state.first_steps {
            if config.round_schedule().opening_rounds != state.schedule.opening_rounds {
                (config.sync.opening_rounds, config.sync.opening_share) =
                    (state.schedule.opening_rounds, 0.0);
            }
            if config.sync.adapt {
                config.sync.early_share *= first as f64 / state.schedule.steps.max(first) as f64;
            }
        }
        let config_toml = config.to_toml()?;
        if state.phase == Phase::Preparing {
            state.phase = Phase::Gathering;
        }
        let mut run = Self {
            config_toml,
            state,
            now,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            preparing: None,
            settling: None,
            grace_until: None,
            gone: BTreeSet::new(),
            departures: Departures::default(),
            latecomers: Latecomers::default(),
            handovers: Handovers::default(),
            absent_holders: AbsentHolders::default(),
            suspending: false,
            is_short: false,
            together: Together::default(),
            moves: Moves::default(),
            last_join: now,
            begun_at: now,
            parity: BTreeMap::new(),
            replicas_formed: 0,
            unfit: None,
            surveys: Surveys::default(),
            worked_out: WorkedOut::default(),
            replanning: Replanning::default(),
            copy_failed: false,
            summaries: Summaries::default(),
            refusals: Refusals::default(),
            audits: Audits::default(),
            watch: Watch::new(&config),
            shares: Shares::default(),
            speeds: Speeds::default(),
            notices: VecDeque::new(),
            silence_at: None,
            reach: Reach::default(),
            data_moved: false,
            told_no_data: false,
            next_due: Some(now),
            roll: None,
            persisted_at: now,
            commands: Vec::new(),
            config,
        };
        run.summaries.cut_back(run.state.ledger.through());
        if matches!(run.state.phase, Phase::Training | Phase::Draining) {
            run.await_members();
        }
        Ok(run)
    }

    /// Takes an event; returns what to do about it.
    #[must_use = "commands must be executed"]
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        self.pass_time(now);
        self.forgive_if_late();
        let matters = match event {
            Event::Opened { connection, worker, address } => {
                self.connections.insert(connection, Connection { worker, address, joined: false });
                false
            }
            Event::Message { connection, message } => self.handle_message(connection, message),
            Event::Closed { connection } => {
                self.handle_closed(connection);
                true
            }
            Event::Moved { connection, address } => {
                self.handle_moved(connection, address);
                false
            }
            Event::Timer => true,
            Event::Planned(answer) => {
                self.handle_planned(*answer);
                true
            }
            Event::Drain => {
                self.handle_drain();
                true
            }
            Event::Checkpoint => {
                self.handle_checkpoint_call();
                true
            }
            Event::Suspend => {
                self.handle_suspend();
                true
            }
            Event::Pause => {
                self.handle_pause();
                true
            }
            Event::Resume => {
                self.handle_resume();
                true
            }
            Event::Dismiss { worker } => {
                self.handle_dismiss(worker);
                true
            }
            Event::Kick { worker } => {
                self.handle_kick(worker);
                true
            }
        };
        // Whatever changes something also says something.
        if matters || !self.commands.is_empty() || self.next_due.is_some_and(|at| at <= self.now) {
            self.advance();
            self.tell_data_holders();
            self.next_due = self.find_next_due();
        }
        std::mem::take(&mut self.commands)
    }

    fn pass_time(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now += passed;
        let training = matches!(self.state.phase, Phase::Training | Phase::Draining);
        if training && !self.is_held() && self.peers.values().any(Peer::is_present_member) {
            self.state.tally.watch(passed);
        }
    }

    /// When to call [`Run::handle`] with [`Event::Timer`], if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.next_due
    }

    /// The durable part.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the run is, its plan included where that was made here.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Whether it may have made something possible or necessary. What many workers say often does so by the last of them alone.
    fn handle_message(&mut self, connection: ConnectionId, message: ToCoordinator) -> bool {
        let Some(&Connection { worker, address, joined }) = self.connections.get(&connection) else {
            return false;
        };
        if let ToCoordinator::Join(join) = message {
            match joined {
                true => self.violation(connection, "joined twice on one connection"),
                false => self.handle_join(connection, worker, address, join),
            }
            return true;
        }
        if !joined {
            self.violation(connection, "spoke before it joined");
            return true;
        }
        let Some(peer) = self.peers.get_mut(&worker).filter(|peer| peer.connection == Some(connection))
        else {
            return false;
        };
        // Who can be heard but cannot hear says no more that it is alive, and this is no word of that kind.
        if !matches!(message, ToCoordinator::OutOfReach(_)) {
            peer.silence.heard(self.now);
        }
        match message {
            ToCoordinator::Join(_) => {}
            ToCoordinator::Ready(ready) => {
                self.handle_ready(worker, ready);
                return self.preparing.as_ref().is_none_or(Preparing::has_heard_all);
            }
            ToCoordinator::Heartbeat(heartbeat) => {
                self.handle_heartbeat(worker, heartbeat);
                return false;
            }
            ToCoordinator::SiteHeartbeat { others, .. } if others.len() > SIGNS_MAX => {
                self.violation(connection, "spoke for more workers than a site has");
            }
            ToCoordinator::SiteHeartbeat { own, others } => {
                self.handle_heartbeat(worker, own);
                self.hear_of(worker, &others);
                return false;
            }
            ToCoordinator::RoundApplied(report) => {
                return self.handle_round_applied(connection, worker, report);
            }
            ToCoordinator::Settled(settled) => {
                self.handle_settled(connection, worker, settled);
                return self.settling.as_ref().is_none_or(Settling::has_heard_all);
            }
            ToCoordinator::Checkpoint(report) => self.handle_checkpoint(worker, report),
            ToCoordinator::Finished { next_round, validation_loss, validation_accuracy } => {
                peer.finished = Some(next_round);
                peer.validation_loss = validation_loss.filter(|loss| loss.is_finite());
                peer.validation_accuracy = share(validation_accuracy);
                let is_done = |peer: &Peer| peer.standing != Standing::Member || peer.finished.is_some();
                return self.peers.values().all(is_done);
            }
            ToCoordinator::Profile(profile) => self.note_profile(worker, profile),
            ToCoordinator::Kept(offer) => {
                self.handle_kept(worker, offer);
                return self.handovers.are_waited_for();
            }
            ToCoordinator::Archived(archived) => peer.note_archived(archived),
            ToCoordinator::Ways(mut ways) => {
                let from = peer.known.site;
                ways.retain(|way| (way.to.0 as usize) < self.state.sites.len());
                self.state.ways.seen(self.now, from, &ways);
                return false;
            }
            ToCoordinator::Data(at) => self.handle_data(worker, at),
            ToCoordinator::OutOfReach(workers) => return self.handle_out_of_reach(worker, workers),
            ToCoordinator::Links(links) => self.surveys.note_links(worker, &links),
            ToCoordinator::Leaving => {
                self.let_go_when_spared(worker, "as it asked to leave", "leaves");
            }
            ToCoordinator::Failed { reason } => {
                self.gone.insert(worker);
                self.remove(worker, Severity::Warning, &format!("cannot go on: {}", shorten(&reason)));
            }
        }
        true
    }

    fn handle_checkpoint(&mut self, worker: WorkerId, report: CheckpointReport) {
        match &report.outcome {
            Ok(state_hash) => {
                self.tell_checkpoint(worker, report.next_round);
                let (next_round, rank) = (report.next_round, self.rank_of(worker).unwrap_or_default());
                // No later one than there is: what is undone is of earlier ones.
                let (parts, generation) = (self.ranks(), report.generation.min(self.state.announced));
                let state_hash = *state_hash;
                let offer =
                    CheckpointOffer { next_round, state_hash, private: true, rank, parts, generation };
                if let Some(peer) = self.peers.get_mut(&worker) {
                    peer.add_offer(offer.clone());
                }
                self.have_kept(worker, offer);
            }
            Err(reason) => {
                let text = format!("could not write a checkpoint at {}: {}", report.path, shorten(reason));
                self.notice(Severity::Error, Some(worker), text);
            }
        }
        self.state.checkpoints.insert(0, Checkpoint { worker, report });
        let (mut seen, mut place) = (BTreeSet::new(), 0);
        self.state.checkpoints.retain(|checkpoint| {
            place += 1;
            let is_newest = seen.insert(checkpoint.worker);
            place <= CHECKPOINTS_KEPT || is_newest && self.peers.contains_key(&checkpoint.worker)
        });
        self.persist();
    }

    /// Does what has become possible or necessary. Each phase looks at facts only, so that the order in which they
    /// came does not matter.
    fn advance(&mut self) {
        self.remove_silent();
        // Whatever moves the run also says something.
        loop {
            let (phase, said) = (self.state.phase, self.commands.len());
            self.let_go_the_spared();
            match phase {
                Phase::Gathering => self.advance_gathering(),
                Phase::Preparing => self.advance_preparing(),
                Phase::Training | Phase::Draining => self.advance_training(),
                Phase::Finished => {}
            }
            if self.state.phase == phase && self.commands.len() == said {
                break;
            }
        }
    }

    pub(super) fn present_members(&self) -> Vec<WorkerId> {
        self.peers.iter().filter(|(_, peer)| peer.is_present_member()).map(|(&worker, _)| worker).collect()
    }

    pub(super) fn send(&mut self, worker: WorkerId, message: ToWorker) {
        if let Some(connection) = self.peers.get(&worker).and_then(|peer| peer.connection) {
            self.commands.push(Command::Send { connection, message });
        }
    }

    pub(super) fn reply(&mut self, connection: ConnectionId, message: ToWorker) {
        self.commands.push(Command::Send { connection, message });
    }

    pub(super) fn close(&mut self, connection: ConnectionId, reason: &str) {
        if self.connections.remove(&connection).is_some() {
            self.commands.push(Command::Close { connection, reason: reason.to_owned() });
        }
    }

    pub(super) fn persist(&mut self) {
        self.persisted_at = self.now;
        self.commands.push(Command::Persist(Record::State(Box::new(self.state.clone()))));
    }

    pub(super) fn notice(&mut self, severity: Severity, worker: Option<WorkerId>, text: String) {
        let at_ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        let notice = Notice { at_ms, severity, worker, text };
        if self.notices.len() == NOTICES_KEPT {
            self.notices.pop_front();
        }
        self.notices.push_back(notice.clone());
        self.commands.push(Command::Report(notice));
    }

    /// The round that the most advanced member computes, by its heartbeats.
    pub(super) fn computing(&self) -> Round {
        let steps =
            self.peers.values().filter_map(|peer| peer.meter.latest()).map(|heartbeat| heartbeat.step);
        self.state.schedule.round_of(steps.max().unwrap_or(0))
    }
}

/// What a worker says is shown to people: not more than a few lines of it.
pub(super) fn shorten(text: &str) -> String {
    const TEXT_CHARS_MAX: usize = 500;
    text.chars().filter(|c| !c.is_control() || *c == '\n').take(TEXT_CHARS_MAX).collect()
}
