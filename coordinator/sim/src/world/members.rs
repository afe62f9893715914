//! Members, their devices, and their messages to each other.

use longhaul_member::message::FromDevice;

use super::*;

impl World {
    pub(super) fn step(&mut self, process: Process, event: Option<SyncEvent>) {
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = &mut node.running else { return };
        if let Some(held) = &mut running.frozen {
            held.extend(event.map(Held::Event));
            return;
        }
        let Some(session) = &mut running.session else { return };
        if let Some((_, pause)) = node.ends_before.take_if(|(number, _)| *number == node.handled) {
            return self.fail(Fault::Kill(process.worker, pause));
        }
        node.handled += 1;
        let outcome = match session.sync.step(event) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.watch.failure = Some(error.context(format!("{}", process.worker)));
                return;
            }
        };
        if let Some(member) = session.sync.protocol() {
            self.watch.looks_at(process, member);
        }
        match outcome {
            None => self.follow(process),
            Some(Outcome::Dismissed(_)) => {
                let returns = node.returns_after.take();
                node.is_dismissed = returns.is_none();
                let running = node.running.take();
                self.disks.remove(process.worker);
                running.iter().for_each(|running| self.bury(running));
                if let Some(pause) = returns {
                    self.watch.ends(process);
                    self.after(pause.as_millis() as u64, Due::Start(process.worker));
                }
            }
            Some(Outcome::Rejoin(_) | Outcome::TooLate(..)) => self.restart(process.worker, 100),
        }
    }

    /// Advances the device, and sets the synchroniser's next wake-up.
    fn follow(&mut self, process: Process) {
        let now = self.now();
        let Some(running) = self.nodes.get_mut(&process.worker).and_then(|node| node.running.as_mut()) else {
            return;
        };
        let Some(session) = &mut running.session else { return };
        let told = session.device.go_on();
        let wait = session.sync.wait().map(|wait| now + wait);
        let timer = wait.filter(|at| session.timer.is_none_or(|set| *at < set || set <= now));
        if timer.is_some() {
            session.timer = timer;
        }
        if let Some(at) = timer {
            self.push(at, Due::SyncTimer(process));
        }
        self.device_says(process, told);
    }

    fn device_says(&mut self, process: Process, Told { said, computes, trained }: Told) {
        for message in said {
            match message {
                // It was ordered to build.
                FromDevice::Prepared(_) => {
                    let at = self.now() + self.pace.build();
                    self.push(at, Due::Built(process));
                }
                message => self.after(0, Due::ToSync(process, SyncEvent::Device(message))),
            }
        }
        if let Some((round, positions)) = trained.filter(|_| self.pace.planned().is_none()) {
            self.watch.books.trained(process.worker, round, positions);
        }
        self.note_waiting(process);
        if let Some(sequences) = computes {
            let node = self.nodes.get(&process.worker).and_then(|node| node.running.as_ref());
            let step = node.and_then(|running| running.session.as_ref()).map(|session| session.device.step());
            let takes = self.pace.step(process.worker, step.unwrap_or_default(), sequences, &mut self.rng);
            let takes = takes * self.nodes.get(&process.worker).map_or(1, |node| node.slowness);
            self.note_step(process, takes, sequences);
            let now = self.now();
            self.push(now + takes, Due::Computed(process));
            let streams = self.nodes.get(&process.worker).is_some_and(|node| node.streams);
            for fragment in (0..self.fragments()).map(FragmentId).filter(|_| streams) {
                let part = self.rng.random_range(0.1..1.0);
                self.push(now + takes.mul_f64(part), Due::Finished(process, fragment));
            }
        }
    }

    pub(super) fn wake(&mut self, process: Process) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) else {
            return;
        };
        match session.sync.wait() {
            Some(wait) if wait.is_zero() => {
                session.timer = None;
                self.step(process, None);
            }
            Some(wait) => {
                let at = now + wait;
                session.timer = Some(at);
                self.push(at, Due::SyncTimer(process));
            }
            None => session.timer = None,
        }
    }

    pub(super) fn computed(&mut self, process: Process) {
        let Some(node) = self.nodes.get_mut(&process.worker).filter(|node| node.is(process)) else { return };
        let Some(running) = &mut node.running else { return };
        if running.frozen.is_some() {
            return self.after(100, Due::Computed(process));
        }
        let Some(session) = &mut running.session else { return };
        session.work.ends();
        let told = session.device.computed();
        self.device_says(process, told);
        self.follow(process);
    }

    pub(super) fn finished(&mut self, process: Process, fragment: FragmentId) {
        let running = self.nodes.get(&process.worker).filter(|node| node.is(process));
        let running = running.and_then(|node| node.running.as_ref()).filter(|it| it.frozen.is_none());
        let session = running.and_then(|running| running.session.as_ref());
        if let Some((part, positions)) = session.and_then(|session| session.device.finished(fragment)) {
            self.watch.books.trained(process.worker, part.round, positions);
            self.step(process, Some(SyncEvent::Device(FromDevice::Finished(part))));
        }
    }

    /// Delivers all messages on the bus.
    pub(super) fn deliver(&mut self) {
        loop {
            let said = self.bus.take();
            if said.is_empty() {
                return;
            }
            said.into_iter().for_each(|said| self.send(said));
        }
    }

    fn send(&mut self, said: Said) {
        match said {
            // No worker has a connection with a revoked one.
            Said::ToPeer { from, to, .. }
                if self.operator.kicked.contains(&from) || self.operator.kicked.contains(&to) => {}
            Said::ToPeer { from, to, event } => {
                let fault = self.fault_of(&event);
                if let Some(FrameFault::Sender(pause)) = fault {
                    return self.fail(Fault::Kill(from, pause));
                }
                if let Some(FrameFault::Receiver(pause)) = fault {
                    return self.fail(Fault::Kill(to, pause));
                }
                let at = match fault {
                    Some(FrameFault::Stuck(more)) => self.now() + more,
                    _ => self.way(from, to, &event),
                };
                self.push(at, Due::FromPeer(to, event));
            }
            Said::Answer { from, to, event } => {
                let at = self.way(from, to.worker, &event);
                self.push(at, Due::ToSync(to, event));
            }
            Said::ToSelf { to, event } => self.after(1, Due::ToSync(to, event)),
            Said::ToDevice { to, message } => match self.own_result_at(to, &message) {
                Some(at) => self.push(at, Due::ToDevice(to, message)),
                None => self.tell_device(to, message),
            },
            Said::ToCoordinator { from, message } => self.report(from, message),
        }
    }

    /// The fault of a frame of the round protocol, which is counted.
    fn fault_of(&mut self, event: &SyncEvent) -> Option<FrameFault> {
        let SyncEvent::Frame { .. } = event else { return None };
        let number = self.links.frames;
        self.links.frames += 1;
        self.links.of_frames.remove(&number)
    }

    pub(super) fn tell_device(&mut self, to: Process, message: ToDevice) {
        let Some(node) = self.nodes.get_mut(&to.worker).filter(|node| node.is(to)) else { return };
        if let Some(session) = node.running.as_mut().and_then(|running| running.session.as_mut()) {
            session.device.take(message);
            self.follow(to);
        }
    }

    /// Arrival of a message from one worker to another: behind earlier ones.
    fn way(&mut self, from: WorkerId, to: WorkerId, event: &SyncEvent) -> Duration {
        let schedule =
            self.run.as_ref().map_or(self.config.round_schedule(), |run| run.state().rounds.schedule);
        let more = self.links.slow.get(&(from.min(to), from.max(to))).copied().unwrap_or_default();
        let takes = self.pace.between((from, to), event, schedule, &mut self.rng);
        let at = self.now() + takes + more;
        let last = self.links.arrivals.entry((from, to)).or_default();
        *last = at.max(*last);
        *last
    }

    fn report(&mut self, from: Process, message: ToCoordinator) {
        if let ToCoordinator::RoundApplied(report) = &message
            && self.pace.planned().is_none()
        {
            self.watch.books.applied(report);
        }
        let Some(node) = self.nodes.get_mut(&from.worker).filter(|node| node.is(from)) else { return };
        let Some(running) = &mut node.running else { return };
        let connection = running.connection.filter(|_| running.is_welcome);
        let Some(session) = &mut running.session else { return };
        session.report(message);
        if let Some(connection) = connection {
            session.say().into_iter().for_each(|report| self.say(connection, report));
        }
    }
}
