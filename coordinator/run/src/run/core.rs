//! State shared by all components of a run: its configuration and durable state, the workers present, and the commands of the present event.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::control::message::ToWorker;
use serde::{Deserialize, Serialize};

use crate::run::accounting::reports::Roll;
use crate::run::command::{Command, Notice, Record, Severity};
use crate::run::event::ConnectionId;
use crate::run::peer::Peer;
use crate::run::state::RunState;

/// Notices kept for the status page.
const NOTICES_KEPT: usize = 50;
/// State shared by all components of a run. Each borrows it for a call, and keeps its own state.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Core {
    #[serde(with = "crate::run::as_toml")]
    pub config: RunConfig,
    pub config_toml: String,
    /// The durable part.
    pub state: RunState,
    pub now: Duration,
    pub connections: BTreeMap<ConnectionId, Connection>,
    pub peers: BTreeMap<WorkerId, Peer>,
    pub notices: VecDeque<Notice>,
    pub persisted_at: Duration,
    /// The members that reports of rounds are counted against; `None`: to be computed.
    pub roll: Option<Roll>,
    /// Commands of the present event so far.
    #[serde(skip)]
    pub commands: Vec<Command>,
}

/// A control connection of an authenticated worker, which may have joined.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Connection {
    pub worker: WorkerId,
    pub address: IpAddr,
    pub joined: bool,
}

impl Core {
    pub(super) fn new(config: RunConfig, config_toml: String, state: RunState, now: Duration) -> Self {
        Self {
            config,
            config_toml,
            state,
            now,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            notices: VecDeque::new(),
            persisted_at: now,
            roll: None,
            commands: Vec::new(),
        }
    }

    /// Handles a change of the members or of a member's state.
    pub(super) fn members_changed(&mut self) {
        self.roll = None;
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
        let steps = self
            .peers
            .values()
            .filter_map(|peer| peer.progress.meter.latest())
            .map(|heartbeat| heartbeat.step);
        self.state.rounds.schedule.round_of(steps.max().unwrap_or(0))
    }
}

/// Shortens a worker's text to a few lines for display.
pub(super) fn shorten(text: &str) -> String {
    const TEXT_CHARS_MAX: usize = 500;
    text.chars().filter(|c| !c.is_control() || *c == '\n').take(TEXT_CHARS_MAX).collect()
}
