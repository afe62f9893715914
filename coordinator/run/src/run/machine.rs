//! The run's state machine: permitted messages by sender, and their handlers.

use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_proto::control::message::{SIGNS_MAX, ToCoordinator};
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::accounting::progress::share;
use crate::run::base_model::BaseModelAvailability;
use crate::run::command::{Command, Severity};
use crate::run::core::{Connection, Core, shorten};
use crate::run::data::DataAvailability;
use crate::run::event::{ConnectionId, Event};
use crate::run::generations::Generations;
use crate::run::liveness::Liveness;
use crate::run::peer::{Peer, Standing};
use crate::run::planning::Planning;
use crate::run::recovery::Recovery;
use crate::run::state::{Phase, RunState};

/// One run, without clock, socket or disk.
///
/// Call [`Run::handle`] with every event and its time, execute the returned commands in order, and call it with
/// [`Event::Timer`] at [`Run::next_timeout`]. Times are on any one clock that does not go back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    pub(super) core: Core,
    pub(super) liveness: Liveness,
    pub(super) generations: Generations,
    pub(super) recovery: Recovery,
    pub(super) planning: Planning,
    pub(super) accounting: Accounting,
    pub(super) data: DataAvailability,
    pub(super) base_model: BaseModelAvailability,
    /// When to look again, if nothing happens before.
    next_due: Option<Duration>,
}

impl Run {
    /// A run from its durable state: a new one is [`RunState::new`], and one that a coordinator left behind goes on.
    ///
    /// # Errors
    /// When the configuration holds a path that TOML cannot write.
    pub fn new(mut config: RunConfig, mut state: RunState, now: Duration) -> Result<Self, toml::ser::Error> {
        if let Some(decided) = &state.plans.decided {
            decided.apply_to(&mut config);
        }
        // A run that was extended had its warm-up and its early part: those are no shares of all its steps.
        if let Some(first) = state.end.first_steps {
            if config.round_schedule().warmup_rounds != state.rounds.schedule.warmup_rounds {
                config.sync.warmup_rounds = state.rounds.schedule.warmup_rounds;
                (config.sync.warmup_share, config.sync.warmup_share_max) = (0.0, 1.0);
            }
            if config.train.warmup_share.is_some() {
                (config.train.warmup_steps, config.train.warmup_share) =
                    (config.train.warmup_steps_in(first), None);
            }
            if config.sync.adapt {
                config.sync.early_share *= first as f64 / state.rounds.schedule.steps.max(first) as f64;
            }
        }
        let config_toml = config.to_toml()?;
        if state.phase == Phase::Preparing {
            state.phase = Phase::Gathering;
        }
        let accounting = Accounting::new(&config);
        let core = Core::new(config, config_toml, state, now);
        let mut run = Self {
            core,
            liveness: Liveness::default(),
            generations: Generations::new(now),
            recovery: Recovery::default(),
            planning: Planning::default(),
            accounting,
            data: DataAvailability::default(),
            base_model: BaseModelAvailability::default(),
            next_due: Some(now),
        };
        run.accounting.cut_back(run.core.state.rounds.ledger.through());
        if matches!(run.core.state.phase, Phase::Training | Phase::Draining) {
            run.await_members();
        }
        Ok(run)
    }

    /// Handles an event; returns the commands that follow from it.
    #[must_use = "commands must be executed"]
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        self.accounting.pass_time(&mut self.core, now);
        self.liveness.forgive_if_late(&mut self.core);
        let matters = match event {
            Event::Opened { connection, worker, address } => {
                self.core.connections.insert(connection, Connection { worker, address, joined: false });
                false
            }
            Event::Message { connection, message } => self.handle_message(connection, message),
            Event::Closed { connection } => {
                self.handle_closed(connection);
                true
            }
            Event::Moved { connection, address } => {
                self.liveness.handle_moved(&mut self.core, connection, address);
                false
            }
            Event::Timer => true,
            Event::Planned(answer) => {
                self.handle_planned(*answer);
                true
            }
            Event::Drain => {
                self.core.handle_drain();
                true
            }
            Event::Checkpoint => {
                self.core.handle_checkpoint_call();
                true
            }
            Event::Suspend => {
                self.handle_suspend();
                true
            }
            Event::Pause => {
                self.core.handle_pause();
                true
            }
            Event::Resume => {
                self.core.handle_resume();
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
        // Every change comes with a command.
        if matters || !self.core.commands.is_empty() || self.next_due.is_some_and(|at| at <= self.core.now) {
            self.advance();
            self.data.tell_data_holders(&mut self.core);
            self.base_model.tell_holders(&mut self.core);
            self.next_due = self.find_next_due();
        }
        std::mem::take(&mut self.core.commands)
    }

    /// When to call [`Run::handle`] with [`Event::Timer`], if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.next_due
    }

    /// The durable part.
    #[must_use]
    pub fn state(&self) -> &RunState {
        &self.core.state
    }

    /// The run's configuration, including a plan made here.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.core.config
    }

    /// Handles a message. Returns whether it may have made something possible or necessary; of many alike messages, often only
    /// the last one does.
    fn handle_message(&mut self, connection: ConnectionId, message: ToCoordinator) -> bool {
        let Some(&Connection { worker, address, joined }) = self.core.connections.get(&connection) else {
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
            self.violation(connection, "sent a message before it joined");
            return true;
        }
        let Some(peer) = self.core.peers.get_mut(&worker).filter(|peer| peer.connection == Some(connection))
        else {
            return false;
        };
        // A worker that cannot receive sends no sign of life, and this message is none.
        if !matches!(message, ToCoordinator::OutOfReach(_)) {
            peer.silence.heard(self.core.now);
        }
        match message {
            ToCoordinator::Join(_) => {}
            ToCoordinator::Ready(ready) => {
                self.handle_ready(worker, ready);
                return self.generations.has_heard_all_ready();
            }
            ToCoordinator::Heartbeat(heartbeat) => {
                self.core.handle_heartbeat(worker, heartbeat);
                return false;
            }
            ToCoordinator::SiteHeartbeat { others, .. } if others.len() > SIGNS_MAX => {
                self.violation(connection, "reported for more workers than a site can have");
            }
            ToCoordinator::SiteHeartbeat { own, others } => {
                self.core.handle_heartbeat(worker, own);
                self.core.hear_of(worker, &others);
                return false;
            }
            ToCoordinator::RoundApplied(report) => {
                return self.handle_round_applied(connection, worker, report);
            }
            ToCoordinator::Settled(settled) => {
                self.handle_settled(connection, worker, settled);
                return self.generations.has_heard_all_settled();
            }
            ToCoordinator::Checkpoint(report) => {
                self.recovery.handle_checkpoint(&mut self.core, worker, report)
            }
            ToCoordinator::Finished { next_round, validation_loss, validation_accuracy } => {
                peer.progress.finished = Some(next_round);
                peer.progress.validation_loss = validation_loss.filter(|loss| loss.is_finite());
                peer.progress.validation_accuracy = share(validation_accuracy);
                let is_done =
                    |peer: &Peer| peer.standing != Standing::Member || peer.progress.finished.is_some();
                return self.core.peers.values().all(is_done);
            }
            ToCoordinator::Scores { next_round, scores } => {
                self.core.note_scores(worker, next_round, &scores);
                return false;
            }
            ToCoordinator::Profile(profile) => self.planning.note_profile(&mut self.core, worker, profile),
            ToCoordinator::Kept(offer) => {
                self.recovery.handle_kept(&mut self.core, worker, offer);
                return self.recovery.waits_for_handovers();
            }
            ToCoordinator::Archived(archived) => peer.note_archived(archived),
            ToCoordinator::SeenLinks(mut ways) => {
                let from = peer.known.site;
                ways.retain(|way| (way.to.0 as usize) < self.core.state.roster.sites.len());
                self.core.state.ways.seen(self.core.now, from, &ways);
                return false;
            }
            ToCoordinator::Data(at) => self.data.handle_data(&mut self.core, worker, at),
            ToCoordinator::Model(at) => self.base_model.handle(&mut self.core, worker, at),
            ToCoordinator::OutOfReach(workers) => {
                return self.liveness.handle_out_of_reach(&mut self.core, worker, workers);
            }
            ToCoordinator::Links(links) => self.planning.note_links(worker, &links),
            ToCoordinator::Leaving => {
                self.let_go_when_spared(worker, "as it asked to leave", "leaves");
            }
            ToCoordinator::Failed { reason } => {
                self.generations.exclude(worker);
                self.remove(worker, Severity::Warning, &format!("cannot go on: {}", shorten(&reason)));
            }
        }
        true
    }

    /// Takes all steps that have become possible or necessary. Each phase looks at facts only, so their order of
    /// arrival does not matter.
    fn advance(&mut self) {
        self.remove_silent();
        // Every step comes with a command.
        loop {
            let (phase, said) = (self.core.state.phase, self.core.commands.len());
            self.let_go_the_spared();
            match phase {
                Phase::Gathering => self.advance_gathering(),
                Phase::Preparing => self.advance_preparing(),
                Phase::Training | Phase::Draining => self.advance_training(),
                Phase::Finished => {}
            }
            if self.core.state.phase == phase && self.core.commands.len() == said {
                break;
            }
        }
    }
}

impl Accounting {
    fn pass_time(&mut self, core: &mut Core, now: Duration) {
        let passed = now.saturating_sub(core.now);
        core.now += passed;
        let training = matches!(core.state.phase, Phase::Training | Phase::Draining);
        if training && !self.is_held(core) && core.peers.values().any(Peer::is_present_member) {
            core.state.tally.watch(passed);
        }
    }
}
