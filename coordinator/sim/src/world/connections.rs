//! Connections between workers and the coordinator.

use super::*;

impl World {
    pub(super) fn connect(&mut self, process: Process) {
        let now = self.now();
        let Some(node) = self.nodes.get(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = node.running.as_ref().filter(|running| running.connection.is_none()) else {
            return;
        };
        if self.operator.kicked.contains(&process.worker) {
            return;
        }
        let alone_until = self.links.alone.get(&process.worker).copied().unwrap_or_default();
        let reachable_at = self.links.reachable_at.max(alone_until);
        if self.run.is_none() || now < reachable_at || running.frozen.is_some() {
            return self.after(300, Due::Connect(process));
        }
        let Some(join) = node.join(RUN) else { return };
        let connection = ConnectionId(self.links.next_connection);
        self.links.next_connection += 1;
        self.links.connections.insert(connection, (process, [now; 2]));
        if let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) {
            (running.connection, running.is_welcome) = (Some(connection), false);
        }
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.tell_run(Event::Opened { connection, worker: process.worker, address });
        self.say(connection, ToCoordinator::Join(join));
    }

    pub(super) fn say(&mut self, connection: ConnectionId, message: ToCoordinator) {
        let at = self.arrival(connection, 1);
        self.push(at, Due::ToRun(connection, message));
    }

    /// The process that a connection is of, as long as it has it.
    fn of(&self, connection: ConnectionId) -> Option<Process> {
        let (process, _) = self.links.connections.get(&connection)?;
        let running = self.nodes.get(&process.worker)?.running.as_ref()?;
        (running.process == *process && running.connection == Some(connection)).then_some(*process)
    }

    pub(super) fn lose(&mut self, connection: ConnectionId) {
        let Some(process) = self.of(connection) else { return };
        if let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) {
            running.connection = None;
        }
        let wait = self.draw(50..900);
        self.after(wait, Due::Connect(process));
    }

    pub(super) fn hear(&mut self, connection: ConnectionId, message: ToWorker) {
        let Some(process) = self.of(connection) else { return };
        let Some(node) = self.nodes.get_mut(&process.worker) else { return };
        if let Some(held) = node.running.as_mut().and_then(|running| running.frozen.as_mut()) {
            return held.push(Held::Message(connection, message));
        }
        match &message {
            ToWorker::Welcome(welcome) => {
                let had_session = node.running.as_ref().is_some_and(|running| running.session.is_some());
                // A process whose session is over is started anew.
                if had_session && !welcome.resumed {
                    return self.restart(process.worker, 100);
                }
                return self.welcome(process, connection, welcome);
            }
            ToWorker::Probe { peers } => return self.probe(process, connection, peers),
            ToWorker::Speak => {
                let heartbeat = self.heartbeat_of(process);
                return self.say(connection, ToCoordinator::Heartbeat(heartbeat));
            }
            ToWorker::Begin(start) => {
                if let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) {
                    session.begins(start.membership.generation, start.first_round);
                }
                if self.pace.planned().is_none() {
                    let fragments = self.fragments();
                    self.watch.books.begins(start, fragments);
                }
                self.begins(process.worker, start);
            }
            ToWorker::Refused { .. } if self.operator.kicked.contains(&process.worker) => return,
            ToWorker::Refused { reason } => {
                self.watch.failure = Some(anyhow::anyhow!("{}: {reason}", process.worker));
                return;
            }
            _ => {}
        }
        self.step(process, Some(SyncEvent::Coordinator(message)));
    }

    /// Reports that may have been lost, and those that have waited.
    pub(super) fn said_again(&mut self, connection: ConnectionId) {
        let Some(process) = self.of(connection) else { return };
        let running = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut());
        let Some(session) = running.and_then(|running| running.session.as_mut()) else { return };
        session.repeat();
        session.say().into_iter().for_each(|report| self.say(connection, report));
    }

    pub(super) fn beat(&mut self, process: Process) {
        let Some(node) = self.nodes.get(&process.worker).filter(|node| node.is(process)) else { return };
        let connection =
            node.running.as_ref().filter(|running| running.frozen.is_none() && running.is_welcome);
        if let Some(connection) = connection.and_then(|running| running.connection) {
            let heartbeat = self.heartbeat_of(process);
            self.say(connection, ToCoordinator::Heartbeat(heartbeat));
        }
        self.after(HEARTBEAT_INTERVAL_MS, Due::Heartbeat(process));
    }

    /// Sends a worker's report of others that do not answer it.
    pub(super) fn tell_of_reach(&mut self, by: WorkerId, of: Vec<WorkerId>) {
        let running = self.nodes.get(&by).and_then(|node| node.running.as_ref());
        let running = running.filter(|running| running.is_welcome && running.frozen.is_none());
        if let Some(connection) = running.and_then(|running| running.connection) {
            self.say(connection, ToCoordinator::OutOfReach(of));
        }
    }
}
