//! Who was kicked, and comes again.

use longhaul_proto::control::message::Settled;

use super::*;

/// What the coordinator has said.
#[derive(Default)]
pub struct Said {
    /// Who is out of the run, over each connection.
    revoked: BTreeMap<ConnectionId, BTreeSet<WorkerId>>,
    /// That a generation begins, to somebody.
    begun: BTreeSet<Generation>,
}

impl World {
    /// Nobody who was kicked is told anything but that, nor is it a member when a generation begins. Who comes back to one that had begun before has heard first who is out, and so connects with nobody of those.
    pub(super) fn check_sent(&mut self, connection: ConnectionId, message: &ToWorker) {
        if let ToWorker::Revoked { workers } = message {
            self.said.revoked.entry(connection).or_default().extend(workers);
        }
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
            let is_said_again = !self.said.begun.insert(start.membership.generation);
            let told = self.said.revoked.get(&connection).filter(|_| is_said_again);
            let is_known = |worker: &WorkerId| told.is_some_and(|told| told.contains(worker));
            let members = start.membership.members().iter().map(|member| member.worker);
            let kicked: Vec<WorkerId> =
                members.filter(|worker| revoked.contains(worker) && !is_known(worker)).collect();
            assert!(kicked.is_empty(), "{kicked:?} were kicked, and are members for {to:?}");
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
