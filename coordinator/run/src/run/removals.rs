//! How a worker goes: its connection ends, its process is forgotten, or it breaks the protocol.

use std::time::Duration;

use longhaul_common::id::WorkerId;

use crate::run::command::{Command, Severity};
use crate::run::core::Connection;
use crate::run::event::ConnectionId;
use crate::run::machine::Run;
use crate::run::state::Phase;

impl Run {
    pub(super) fn handle_closed(&mut self, connection: ConnectionId) {
        let Some(Connection { worker, .. }) = self.core.connections.remove(&connection) else { return };
        if self.core.peers.get(&worker).is_some_and(|peer| peer.connection == Some(connection)) {
            self.lose_connection(worker, "is gone: its connection was closed");
        }
    }

    /// Handles a silent worker. Without it its copy of the model breaks up; where that is the last complete one, the worker has time to come back.
    pub(super) fn lose_connection(&mut self, worker: WorkerId, what: &str) {
        if !self.core.is_of_the_last_copy(worker) {
            return self.remove(worker, Severity::Warning, what);
        }
        self.core.members_changed();
        let Some(peer) = self.core.peers.get_mut(&worker) else { return };
        if let Some(connection) = peer.connection.take()
            && self.core.connections.remove(&connection).is_some()
        {
            self.core.commands.push(Command::Close { connection, reason: what.to_owned() });
        }
        self.generations
            .wait_until(self.core.now + Duration::from_millis(self.core.config.faults.reconnect_grace_ms));
        self.core.notice(
            Severity::Warning,
            Some(worker),
            format!("{what}; the run waits for it, as no other complete copy of the model is left"),
        );
    }

    /// Forgets a worker's process, and closes its connection. If it was a member, the generation settles without it. Leaving in order has [`Severity::Info`].
    pub(super) fn remove(&mut self, worker: WorkerId, severity: Severity, what: &str) {
        let Some(peer) = self.core.peers.remove(&worker) else { return };
        self.core.members_changed();
        self.liveness.departed(self.core.now, worker, &peer, severity, what);
        self.generations.departed(worker);
        self.recovery.departed(worker);
        self.planning.departed(worker);
        self.accounting.departed(worker);
        self.data.departed(&peer);
        self.base_model.departed(&peer);
        if let Some(connection) = peer.connection
            && self.core.connections.remove(&connection).is_some()
        {
            self.core.commands.push(Command::Close { connection, reason: what.to_owned() });
        }
        self.core.notice(severity, Some(worker), what.to_owned());
        if self.core.state.phase != Phase::Finished {
            self.dissolve(peer.slot);
        }
    }

    /// Disconnects a peer that breaks the protocol.
    pub(super) fn violation(&mut self, connection: ConnectionId, what: &str) {
        let Some(Connection { worker, .. }) = self.core.connections.get(&connection).copied() else { return };
        let text = format!("broke the protocol: it {what}");
        if self.core.peers.get(&worker).is_some_and(|peer| peer.connection == Some(connection)) {
            self.generations.exclude(worker);
            return self.remove(worker, Severity::Error, &text);
        }
        self.core.connections.remove(&connection);
        self.core.commands.push(Command::Close { connection, reason: text.clone() });
        self.core.notice(Severity::Error, Some(worker), text);
    }
}
