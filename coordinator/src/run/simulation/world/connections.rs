//! What workers and the coordinator say to each other, and connections that come and go.

use super::*;

impl World {
    pub(super) fn connect(&mut self, worker: WorkerId, incarnation: u64) {
        let node = &self.nodes[&worker];
        if node.incarnation != incarnation || !node.running || node.connection.is_some() || node.dismissed {
            return;
        }
        if self.run.is_none() || node.frozen || self.now < self.reachable_at {
            return self.at_ms(300, Happening::Connect(worker, incarnation));
        }
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.insert(connection, (worker, self.now, self.now));
        let node = self.nodes.get_mut(&worker).unwrap();
        node.connection = Some(connection);
        node.welcomed = false;
        let join = self.join_of(worker);
        self.handle(Event::Opened { connection, worker, address: IpAddr::V4(Ipv4Addr::LOCALHOST) });
        self.say(worker, ToCoordinator::Join(join));
    }

    /// Its first message, as of now.
    pub(super) fn join_of(&mut self, worker: WorkerId) -> Join {
        let moves = self.moves.get(&worker).copied().unwrap_or_default();
        let address = SocketAddr::from(([0, 0, 0, 0], 7000 + moves));
        let too_late_ms = self.too_late.remove(&worker).then_some(STATE_TOOK_MS);
        let node = &self.nodes[&worker];
        Join {
            incarnation: node.incarnation,
            site: node.site_name.clone(),
            lan_address: address,
            wan_address: address,
            device: "model".to_owned(),
            memory_bytes: 1 << 34,
            host_memory_bytes: None,
            held: node.generation.as_ref().map(|start| (start.membership.generation, node.open_round())),
            too_late_ms,
            checkpoints: node.disk.iter().map(|saved| saved.offer.clone()).collect(),
        }
    }

    pub(super) fn say(&mut self, worker: WorkerId, message: ToCoordinator) {
        let node = &self.nodes[&worker];
        let allowed = node.welcomed
            || matches!(
                message,
                ToCoordinator::Join(_) | ToCoordinator::Heartbeat(_) | ToCoordinator::SiteHeartbeat { .. }
            );
        if let Some(connection) = node.connection.filter(|_| allowed) {
            let at = self.delivery(connection, true);
            self.push(at, Happening::ToRun(connection, message));
        }
    }

    pub(super) fn node_loses(&mut self, connection: ConnectionId) {
        let Some((worker, ..)) = self.connections.get(&connection).copied() else { return };
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.frozen {
            return self.stopped.entry(worker).or_default().push(Happening::ClosedAtNode(connection));
        }
        if node.connection == Some(connection) {
            node.connection = None;
            let incarnation = node.incarnation;
            let delay = self.draw(50..900);
            self.at_ms(delay, Happening::Connect(worker, incarnation));
        }
    }

    pub(super) fn node_hears(&mut self, connection: ConnectionId, message: ToWorker) {
        let Some((worker, ..)) = self.connections.get(&connection).copied() else { return };
        let node = self.nodes.get_mut(&worker).unwrap();
        if node.connection != Some(connection) {
            return;
        }
        if node.frozen {
            return self.stopped.entry(worker).or_default().push(Happening::ToNode(connection, message));
        }
        match message {
            ToWorker::Welcome(welcome) => {
                node.site = welcome.site;
                node.welcomed = true;
                if welcome.resumed {
                    let reports = node.reports.iter().cloned().map(ToCoordinator::RoundApplied);
                    let all: Vec<ToCoordinator> = reports.chain(node.written()).collect();
                    all.into_iter().for_each(|message| self.say(worker, message));
                    if self.nodes[&worker].finished {
                        self.say_finished(worker);
                    }
                } else {
                    node.reset();
                }
            }
            ToWorker::Prepare(start) => {
                node.reset();
                if let Start::Checkpoint(offer) = start {
                    let saved = node.disk.iter().find(|saved| saved.offer == offer).unwrap().clone();
                    (node.applied, node.corruption, node.carried) =
                        (saved.applied, saved.corruption, saved.carried);
                }
                self.say_ready(worker);
            }
            ToWorker::Heal { donors } => {
                // Who has loaded a state, and said so, keeps it until another one has come.
                if node.holds && node.generation.is_none() {
                    node.loads += 1;
                } else {
                    node.reset();
                }
                let loads = node.loads;
                let donors = donors.into_iter().map(|donor| donor.worker).collect();
                let delay = self.draw(100..1500);
                self.at_ms(delay, Happening::Healed(worker, loads, donors));
            }
            ToWorker::Settle { generation } => {
                node.settling = true;
                let settled = node.settled(generation);
                self.say(worker, ToCoordinator::Settled(settled));
            }
            ToWorker::Keep(part) => self.keep(worker, part),
            // Its plan is written.
            ToWorker::Probe { .. }
            | ToWorker::Revoked { .. }
            | ToWorker::DataHolders(_)
            | ToWorker::Handover => {}
            ToWorker::Speak => {
                node.speaks_until = self.now + REST;
                self.say_heartbeat(worker);
            }
            ToWorker::Begin(start) => {
                // One that still heals takes part when it has.
                if node.holds {
                    // A state that is on its way is not needed.
                    node.loads += 1;
                    node.begin(Arc::unwrap_or_clone(start));
                    self.pull_missing(worker);
                    self.go_on(worker);
                } else {
                    node.begin_later = Some(Arc::unwrap_or_clone(start));
                }
            }
            ToWorker::Dismiss { .. } => {
                node.dismissed = true;
                node.running = false;
                let carried = std::mem::take(&mut node.carried);
                node.dropped.extend(carried);
            }
            // As a process does that may not come back: it was kicked, or the memory of the worker that all compare with went bad after it had said what it holds.
            ToWorker::Refused { reason }
                if reason.contains("revoked") || self.was_corrupted && reason.contains("faulty memory") =>
            {
                node.dismissed = true;
                node.running = false;
                let carried = std::mem::take(&mut node.carried);
                node.dropped.extend(carried);
            }
            ToWorker::Refused { reason } => panic!("{worker} was refused: {reason}"),
            ToWorker::Seat { rank } => panic!("{worker} was given part {rank:?} of a model in one part"),
        }
    }

    fn say_ready(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        node.holds = true;
        let ready = Ready {
            next_round: node.next_round(),
            rank: 0,
            state_hash: state_hash(&node.applied, node.corruption),
            parameters: 100,
            samples: 10_000,
            data_hash: [3; 32],
        };
        self.say(worker, ToCoordinator::Ready(ready));
    }

    pub(super) fn say_finished(&mut self, worker: WorkerId) {
        let next_round = self.nodes[&worker].next_round();
        self.say(
            worker,
            ToCoordinator::Finished { next_round, validation_loss: None, validation_accuracy: None },
        );
    }

    pub(super) fn healed(&mut self, worker: WorkerId, loads: u64, donors: &[WorkerId]) {
        if self.nodes[&worker].loads != loads || !self.nodes[&worker].running {
            return;
        }
        let able = |donor: &&WorkerId| {
            let donor = &self.nodes[*donor];
            donor.running && !donor.frozen && donor.holds
        };
        if let Some(donor) = donors.iter().find(able) {
            let (applied, corruption) = (self.nodes[donor].applied.clone(), self.nodes[donor].corruption);
            let node = self.nodes.get_mut(&worker).unwrap();
            let begin_later = node.begin_later.take();
            node.reset();
            (node.applied, node.corruption) = (applied, corruption);
            if let Some(start) = begin_later {
                node.holds = true;
                node.begin(start);
                self.pull_missing(worker);
                return self.go_on(worker);
            }
            self.say_ready(worker);
        } else {
            self.at_ms(500, Happening::Healed(worker, loads, donors.to_vec()));
        }
    }
}
