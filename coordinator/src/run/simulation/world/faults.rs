//! What goes wrong.

use super::*;

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        self.log.push(format!("{:>8?} fault: {fault:?}", self.now));
        match fault {
            Fault::StopRun => {
                self.end_coordinator();
                self.at_ms(1500, Happening::Fault(Fault::StartRun));
            }
            Fault::StartRun if self.run.is_none() => {
                let config = super::super::config(self.wanted);
                self.run = Some(Run::new(config, self.stored.clone(), self.now).unwrap());
                self.handle(Event::Timer);
                // Whoever had asked it to stop for now has all started again.
                if self.suspended_for.take().is_some() {
                    for worker in self.nodes.keys().copied().collect::<Vec<_>>() {
                        self.at_ms(100, Happening::Fault(Fault::Return(worker)));
                    }
                }
            }
            Fault::StartRun => {}
            Fault::CutOff(for_ms) => {
                self.reachable_at = self.now + Duration::from_millis(for_ms);
                for connection in self.connections.keys().copied().collect::<Vec<_>>() {
                    self.at_ms(5, Happening::ClosedAtNode(connection));
                    let later = self.draw(10..2000);
                    self.at_ms(later, Happening::ClosedAtRun(connection));
                }
            }
            Fault::Drain => self.handle(Event::Drain),
            Fault::Suspend(for_ms) => {
                self.handle(Event::Suspend);
                self.suspended_for = self.run.is_some().then_some(for_ms);
            }
            Fault::Pause => self.handle(Event::Pause),
            // Nobody takes the word of an operator who asks a dead coordinator; who wants a run to go on asks again.
            Fault::Resume if self.run.is_none() => self.at_ms(500, Happening::Fault(Fault::Resume)),
            Fault::Resume => self.handle(Event::Resume),
            Fault::Dismiss(worker) => self.handle(Event::Dismiss { worker }),
            // Where nothing is to go on from, a run waits for as many as it wants, and nobody takes the place of who is gone for good here.
            Fault::Kick(worker) | Fault::Leave(worker) if !self.others_go_on_without(worker) => {}
            Fault::Kick(worker) => self.handle(Event::Kick { worker }),
            Fault::Intrude(worker) => self.intrude(worker),
            Fault::NoDisk(worker, for_ms) => {
                self.nodes.get_mut(&worker).unwrap().has_disk = false;
                self.at_ms(for_ms, Happening::Fault(Fault::Disk(worker)));
            }
            Fault::Disk(worker) => self.nodes.get_mut(&worker).unwrap().has_disk = true,
            Fault::OutOfReach(by, of, for_ms) => {
                if self.nodes[&by].running && !self.nodes[&by].frozen {
                    let of = if for_ms > 0 { vec![of] } else { Vec::new() };
                    self.say(by, ToCoordinator::OutOfReach(of));
                }
                if for_ms > 0 {
                    let left = for_ms.saturating_sub(OUT_OF_REACH_REPEATED_MS);
                    self.at_ms(OUT_OF_REACH_REPEATED_MS, Happening::Fault(Fault::OutOfReach(by, of, left)));
                }
            }
            Fault::TooLate(worker) => {
                self.too_late.insert(worker);
                self.stop_node(worker);
            }
            Fault::Move(worker) => {
                *self.moves.entry(worker).or_default() += 1;
                self.fault(Fault::Disconnect(worker));
            }
            Fault::Kill(worker) => self.stop_node(worker),
            Fault::Start(worker) => {
                let node = self.nodes.get_mut(&worker).unwrap();
                if !node.running && !node.dismissed {
                    node.incarnation += 1;
                    node.running = true;
                    node.frozen = false;
                    node.connection = None;
                    node.signs.clear();
                    node.reset();
                    let incarnation = node.incarnation;
                    self.at_ms(10, Happening::Connect(worker, incarnation));
                    self.at_ms(10, Happening::Heartbeat(worker, incarnation));
                }
            }
            Fault::Freeze(worker) => self.nodes.get_mut(&worker).unwrap().frozen = true,
            Fault::Thaw(worker) => {
                self.nodes.get_mut(&worker).unwrap().frozen = false;
                let waiting = self.stopped.remove(&worker).unwrap_or_default();
                waiting.into_iter().for_each(|happening| self.push(self.now, happening));
                self.go_on(worker);
            }
            Fault::Disconnect(worker) => {
                if let Some(connection) = self.nodes[&worker].connection {
                    self.at_ms(5, Happening::ClosedAtNode(connection));
                    let later = self.draw(10..3000);
                    self.at_ms(later, Happening::ClosedAtRun(connection));
                }
            }
            Fault::Corrupt(worker) => {
                self.was_corrupted = true;
                self.nodes.get_mut(&worker).unwrap().corruption = 99;
            }
            Fault::Leave(worker) => self.say(worker, ToCoordinator::Leaving),
            Fault::LeaveFor(worker, for_ms) => {
                self.say(worker, ToCoordinator::Leaving);
                self.at_ms(for_ms, Happening::Fault(Fault::Return(worker)));
            }
            Fault::Return(worker) => {
                self.nodes.get_mut(&worker).unwrap().dismissed = false;
                self.fault(Fault::Start(worker));
            }
        }
    }

    /// Whether somebody has a checkpoint who is neither this worker nor was kicked.
    fn others_go_on_without(&self, worker: WorkerId) -> bool {
        let Some(run) = &self.run else { return false };
        let may_stay = |node: &&Node| node.worker != worker && !run.state().revoked.contains(&node.worker);
        self.nodes.values().filter(may_stay).any(|node| !node.disk.is_empty())
    }

    pub(super) fn stop_node(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        if !node.running {
            return;
        }
        node.running = false;
        self.stopped.remove(&worker);
        let connection = node.connection.take();
        node.reset();
        if let Some(connection) = connection {
            let later = self.draw(10..2000);
            self.at_ms(later, Happening::ClosedAtRun(connection));
        }
        let later = self.draw(500..4000);
        self.at_ms(later, Happening::Fault(Fault::Start(worker)));
    }
}
