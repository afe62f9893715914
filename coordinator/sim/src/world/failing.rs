//! Faults, and processes that end and begin.

use longhaul_proto::control::message::OUT_OF_REACH_REPEATED_MS;

use super::*;

impl World {
    pub(super) fn start(&mut self, worker: WorkerId) {
        let off_for = self.off_for(worker);
        if !off_for.is_zero() {
            return self.push(self.now() + off_for, Due::Start(worker));
        }
        let Some(node) = self.nodes.get_mut(&worker) else { return };
        if node.running.is_some() || node.is_dismissed || self.operator.kicked.contains(&worker) {
            return;
        }
        node.start();
        self.disks.insert(worker, node.folder().to_owned());
        let process = node.running.as_ref().map(|running| running.process);
        if let Some(process) = process {
            let at = self.now() + self.pace.connect();
            self.push(at, Due::Connect(process));
            self.after(HEARTBEAT_INTERVAL_MS, Due::Heartbeat(process));
            self.started(process);
        }
    }

    /// The process ends, and another one is started.
    pub(super) fn restart(&mut self, worker: WorkerId, ms: u64) {
        let running = self.nodes.get_mut(&worker).and_then(|node| node.running.take());
        let Some(running) = running else { return };
        self.disks.remove(worker);
        self.bury(&running);
        self.watch.ends(running.process);
        if let Some(connection) = running.connection {
            let at = self.arrival(connection, 1);
            self.push(at, Due::ClosedAtRun(connection));
        }
        self.after(ms, Due::Start(worker));
    }

    pub(super) fn thaw(&mut self, process: Process) {
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let held = node.running.as_mut().and_then(|running| running.frozen.take());
        for held in held.unwrap_or_default() {
            let due = match held {
                Held::Event(event) => Due::ToSync(process, event),
                Held::Message(connection, message) => Due::ToNode(connection, message),
            };
            self.after(0, due);
        }
        self.after(0, Due::SyncTimer(process));
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        let line = format!("{:>8.3?} fault: {fault:?}", self.now());
        self.watch.log.push(line);
        let ms = |time: Duration| time.as_millis() as u64;
        if let Fault::Kill(worker, _)
        | Fault::Freeze(worker, _)
        | Fault::Disconnect(worker)
        | Fault::Leave(worker, _)
        | Fault::Dismiss(worker, _)
        | Fault::Kick(worker)
        | Fault::TooLate(worker)
        | Fault::Move(worker) = fault
            && let Some(node) = self.nodes.get_mut(&worker)
        {
            node.suffered.was_away = true;
        }
        match fault {
            Fault::Kill(worker, pause) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    node.suffered.was_killed |= node.running.is_some();
                }
                self.restart(worker, ms(pause));
            }
            Fault::Freeze(worker, pause) => {
                let Some(running) = self.nodes.get_mut(&worker).and_then(|node| node.running.as_mut()) else {
                    return;
                };
                if running.frozen.is_none() {
                    running.frozen = Some(Vec::new());
                    let process = running.process;
                    self.after(ms(pause), Due::Thaw(process));
                }
            }
            Fault::Disconnect(worker) => {
                let running = self.nodes.get(&worker).and_then(|node| node.running.as_ref());
                if let Some(connection) = running.and_then(|running| running.connection) {
                    self.after(1, Due::ClosedAtRun(connection));
                    self.after(1, Due::ClosedAtNode(connection));
                }
            }
            Fault::CutOff(pause) => {
                self.links.reachable_at = self.now() + pause;
                self.nodes.values_mut().for_each(|node| node.suffered.was_away = true);
                for connection in self.links.connections.keys().copied().collect::<Vec<_>>() {
                    self.after(1, Due::ClosedAtRun(connection));
                    self.after(1, Due::ClosedAtNode(connection));
                }
            }
            Fault::Coordinator(pause) => {
                if self.run.is_some() {
                    self.end_run();
                    self.after(ms(pause), Due::StartRun);
                }
            }
            Fault::Leave(worker, pause) => {
                let Some(node) = self.nodes.get_mut(&worker) else { return };
                let running = node.running.as_ref().filter(|running| running.is_welcome);
                if let Some(connection) = running.and_then(|running| running.connection) {
                    node.returns_after = Some(pause);
                    self.say(connection, ToCoordinator::Leaving);
                }
            }
            Fault::Dismiss(worker, pause) => {
                let Some(node) = self.nodes.get_mut(&worker) else { return };
                if self.run.is_some() && node.running.is_some() {
                    node.returns_after = Some(pause);
                    self.tell_run(Event::Dismiss { worker });
                }
            }
            Fault::Kick(worker) => self.kick(worker),
            Fault::Intrude(worker) => self.intrude(worker),
            Fault::Drain => {
                self.operator.was_drained |= self.run.is_some();
                self.tell_run(Event::Drain);
            }
            Fault::Checkpoint => self.tell_run(Event::Checkpoint),
            Fault::OutOfReach(by, of, pause) => {
                self.tell_of_reach(by, vec![of]);
                let again = Duration::from_millis(OUT_OF_REACH_REPEATED_MS);
                match pause.checked_sub(again) {
                    Some(left) => self.push(self.now() + again, Due::Fault(Fault::OutOfReach(by, of, left))),
                    None => self.after(ms(pause), Due::InReach(by)),
                }
            }
            Fault::TooLate(worker) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    (node.was_too_late, node.suffered.was_killed) = (true, true);
                }
                self.restart(worker, 100);
            }
            Fault::Pause(pause) => {
                self.tell_run(Event::Pause);
                self.after(ms(pause), Due::Resume);
            }
            Fault::Suspend(pause) => {
                self.tell_run(Event::Suspend);
                self.operator.suspended_for = self.run.is_some().then_some(pause);
            }
            Fault::FullDisk(worker, pause) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    node.set_room(RUN, false);
                    self.after(ms(pause), Due::Room(worker));
                }
            }
            Fault::Move(worker) => {
                if let Some(node) = self.nodes.get_mut(&worker) {
                    node.moves += 1;
                }
                self.fail(Fault::Disconnect(worker));
            }
            Fault::SlowDevice(worker, times) => {
                self.nodes.get_mut(&worker).into_iter().for_each(|node| node.slowness = times);
            }
            Fault::Alone(worker, pause) => {
                let until = self.now() + pause;
                self.links.alone.insert(worker, until);
                self.fail(Fault::Disconnect(worker));
            }
            Fault::Slow(one, other, more) => {
                self.links.slow.insert((one.min(other), one.max(other)), more);
            }
        }
    }
}
