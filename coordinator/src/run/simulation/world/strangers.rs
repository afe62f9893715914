//! Who was kicked, and comes again.

use longhaul_proto::control::message::Settled;

use super::*;

impl World {
    /// Nobody who was kicked is told anything but that, nor is anybody told that it is a member.
    pub(super) fn check_sent(&self, connection: ConnectionId, message: &ToWorker) {
        let Some(run) = &self.run else { return };
        let revoked = &run.state().revoked;
        let to = self.connections.get(&connection).map(|(worker, ..)| *worker);
        if to.is_some_and(|worker| revoked.contains(&worker)) {
            assert!(
                matches!(message, ToWorker::Refused { .. }),
                "{to:?} was kicked, and is told {message:?}"
            );
        }
        if let ToWorker::Begin(start) = message {
            let kicked = start.membership.members().iter().find(|member| revoked.contains(&member.worker));
            assert!(kicked.is_none(), "{kicked:?} was kicked, and is a member");
        }
    }

    /// Without the handshake, which lets nobody in who was kicked: the run by itself has to keep it out.
    pub(super) fn intrude(&mut self, worker: WorkerId) {
        let is_out = self.run.as_ref().is_some_and(|run| run.state().revoked.contains(&worker));
        if !is_out {
            return;
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.insert(connection, (worker, self.now, self.now));
        self.handle(Event::Opened { connection, worker, address: IpAddr::V4(Ipv4Addr::LOCALHOST) });
        let generation = self.run.as_ref().map(|run| run.state().announced).unwrap_or_default();
        let settled = Settled { generation, open_round: Round(0), computing: Round(0), results: Vec::new() };
        let words = [
            ToCoordinator::Join(self.join_of(worker)),
            ToCoordinator::Heartbeat(Heartbeat::default()),
            ToCoordinator::Settled(settled),
            ToCoordinator::OutOfReach(self.nodes.keys().copied().collect()),
            ToCoordinator::Leaving,
        ];
        for message in words {
            self.handle(Event::Message { connection, message });
        }
    }
}
