//! Workers that are out of the run, and come again.

use longhaul_common::id::{Generation, Round};
use longhaul_proto::control::message::Settled;

use super::*;

/// Messages of the coordinator.
#[derive(Default)]
pub(super) struct Told {
    /// Revoked workers, as sent over each connection.
    revoked: BTreeMap<ConnectionId, BTreeSet<WorkerId>>,
    /// Generations whose beginning was sent.
    begun: BTreeSet<Generation>,
}

impl World {
    /// A kicked worker receives nothing but that, and is no member of a generation that begins.
    pub(super) fn check_told(&mut self, connection: ConnectionId, message: &ToWorker) {
        if let ToWorker::Revoked { workers } = message {
            self.watch.told.revoked.entry(connection).or_default().extend(workers);
        }
        let Some(run) = &self.run else { return };
        let revoked = &run.state().roster.revoked;
        let to = self.links.connections.get(&connection).map(|(process, _)| process.worker);
        if to.is_some_and(|worker| revoked.contains(&worker)) {
            let is_refusal = matches!(message, ToWorker::Refused { .. });
            assert!(is_refusal, "{to:?} was kicked, and is told {message:?}");
        }
        if let ToWorker::Begin(start) = message {
            // Over a new connection a generation is repeated unchanged, after the workers revoked since.
            let is_said_again = !self.watch.told.begun.insert(start.membership.generation);
            let told = self.watch.told.revoked.get(&connection).filter(|_| is_said_again);
            let is_known = |worker: &WorkerId| told.is_some_and(|told| told.contains(worker));
            let members = start.membership.members().iter().map(|member| member.worker);
            let kicked: Vec<WorkerId> =
                members.filter(|worker| revoked.contains(worker) && !is_known(worker)).collect();
            assert!(kicked.is_empty(), "{kicked:?} were kicked, and are members for {to:?}");
        }
    }

    /// Takes a worker out of the run for good, where others have a state to go on from.
    pub(super) fn kick(&mut self, worker: WorkerId) {
        let stays = |node: &&Node| node.worker != worker && !self.operator.kicked.contains(&node.worker);
        if self.run.is_none() || !self.nodes.values().filter(stays).any(|node| node.has_checkpoint(RUN)) {
            return;
        }
        self.operator.kicked.insert(worker);
        self.tell_run(Event::Kick { worker });
    }

    /// Bypasses the handshake, which refuses kicked workers: the run has to keep it out by itself.
    pub(super) fn intrude(&mut self, worker: WorkerId) {
        let process =
            self.nodes.get(&worker).and_then(|node| node.running.as_ref()).map(|running| running.process);
        let join = self.nodes.get(&worker).and_then(|node| node.join(RUN));
        let (Some(process), Some(join), true) = (process, join, self.operator.kicked.contains(&worker))
        else {
            return;
        };
        let connection = ConnectionId(self.links.next_connection);
        self.links.next_connection += 1;
        self.links.connections.insert(connection, (process, [self.now(); 2]));
        self.tell_run(Event::Opened { connection, worker, address: IpAddr::V4(Ipv4Addr::LOCALHOST) });
        let generation = self.run.as_ref().map(|run| run.state().generations.announced).unwrap_or_default();
        let settled = Settled { generation, open_round: Round(0), computing: Round(0), results: Vec::new() };
        let words = [
            ToCoordinator::Join(join),
            ToCoordinator::Heartbeat(Heartbeat::default()),
            ToCoordinator::Settled(settled),
            ToCoordinator::OutOfReach(self.nodes.keys().copied().collect()),
            ToCoordinator::Leaving,
        ];
        for message in words {
            self.tell_run(Event::Message { connection, message });
        }
    }
}
