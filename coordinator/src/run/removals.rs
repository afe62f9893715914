//! How a worker goes: its connection ends, its process is forgotten, or it breaks the protocol.

use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::command::{Command, Severity};
use super::event::ConnectionId;
use super::machine::{Connection, Run};
use super::state::Phase;

impl Run {
    pub(super) fn handle_closed(&mut self, connection: ConnectionId) {
        let Some(Connection { worker, .. }) = self.connections.remove(&connection) else { return };
        if self.peers.get(&worker).is_some_and(|peer| peer.connection == Some(connection)) {
            self.lose_connection(worker, "is gone: its connection was closed");
        }
    }

    /// A worker cannot be heard. Without it, its copy of the model comes apart; where that is the last one that is whole, it is given time to come back.
    pub(super) fn lose_connection(&mut self, worker: WorkerId, what: &str) {
        if !self.is_of_the_last_copy(worker) {
            return self.remove(worker, Severity::Warning, what);
        }
        self.roll = None;
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        if let Some(connection) = peer.connection.take()
            && self.connections.remove(&connection).is_some()
        {
            self.commands.push(Command::Close { connection, reason: what.to_owned() });
        }
        self.grace_until = Some(self.now + Duration::from_millis(self.config.faults.reconnect_grace_ms));
        self.notice(
            Severity::Warning,
            Some(worker),
            format!("{what}; the only copy of the model waits for it"),
        );
    }

    /// Forgets a worker's process, and closes its connection. If it was a member, the generation settles without it. Who leaves in order leaves with [`Severity::Info`].
    pub(super) fn remove(&mut self, worker: WorkerId, severity: Severity, what: &str) {
        let Some(peer) = self.peers.remove(&worker) else { return };
        self.departures.note(self.now, worker, &peer, severity, what);
        (self.roll, self.unfit) = (None, None);
        self.surveys.leave(worker);
        self.watch.forget(worker);
        self.reach.forget(worker);
        self.moves.forget(worker);
        self.audits.forget(worker);
        self.handovers.forget(worker);
        self.data_moved |= peer.data.is_some();
        if let Some(preparing) = &mut self.preparing {
            preparing.lost(worker);
        }
        self.parity.values_mut().for_each(|parity| parity.forget(worker));
        if let Some(connection) = peer.connection
            && self.connections.remove(&connection).is_some()
        {
            self.commands.push(Command::Close { connection, reason: what.to_owned() });
        }
        self.notice(severity, Some(worker), what.to_owned());
        if self.state.phase != Phase::Finished {
            self.dissolve(peer.seat);
        }
    }

    /// Breaks with a peer that does not keep to the protocol.
    pub(super) fn violation(&mut self, connection: ConnectionId, what: &str) {
        let Some(Connection { worker, .. }) = self.connections.get(&connection).copied() else { return };
        let text = format!("broke the protocol: it {what}");
        if self.peers.get(&worker).is_some_and(|peer| peer.connection == Some(connection)) {
            self.gone.insert(worker);
            return self.remove(worker, Severity::Error, &text);
        }
        self.connections.remove(&connection);
        self.commands.push(Command::Close { connection, reason: text.clone() });
        self.notice(Severity::Error, Some(worker), text);
    }
}
