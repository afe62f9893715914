//! The outside of a member: all its effects on others go to the bus.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_common::id::{FragmentId, Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::{Member, Membership};
use longhaul_member::activity::Activity;
use longhaul_member::message::ToDevice;
use longhaul_member::step_barrier::StepBarrier;
use longhaul_member::{Background, HealedState, Ongoing, Outside, SiteJob, SyncEvent};
use longhaul_proto::control::message::{CheckpointOffer, Encoding, Hash, Heartbeat, HeldPart, ToCoordinator};
use longhaul_proto::round::{Command, Event, Frame, FrameHeader, FrameKind};

use crate::atoms::Atoms;
use crate::bus::{Bus, Process, Said, reply};
use crate::copies::Disks;

/// Of one process.
pub struct Wires {
    pub bus: Bus,
    pub run: RunId,
    pub process: Process,
    pub disks: Disks,
    pub atoms: Option<Atoms>,
    /// The longest round trip to another site.
    pub round_trip: Duration,
    /// When its session began.
    pub began: Duration,
    pub barrier: Arc<StepBarrier>,
    /// Members, and the others of its copy of the model.
    pub members: Mutex<Option<(Membership, Vec<WorkerId>)>>,
}

impl Wires {
    fn is_member(&self, worker: WorkerId) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members
            .as_ref()
            .is_some_and(|(members, others)| members.member(worker).is_some() || others.contains(&worker))
    }

    fn answer(&self, event: SyncEvent) {
        self.bus.say(Said::ToSelf { to: self.process, event });
    }
}

/// Asks the first of these donors, and where it has nothing the others.
fn heal_from(bus: Bus, to: Process, attempt: u64, mut donors: Vec<WorkerId>) {
    if donors.is_empty() {
        let event = SyncEvent::Healed { attempt, answer: Err("no donor has the state".to_owned()) };
        return bus.say(Said::ToSelf { to, event });
    }
    let donor = donors.remove(0);
    let then = bus.clone();
    let reply = reply(move |state: Option<HealedState>| match state {
        Some(state) => {
            let event = SyncEvent::Healed { attempt, answer: Ok(state) };
            then.say(Said::Answer { from: donor, to, event });
        }
        None => heal_from(then, to, attempt, donors),
    });
    bus.say(Said::ToPeer {
        from: to.worker,
        to: donor,
        event: SyncEvent::ServeState { from: Round(0), reply },
    });
}

impl Outside for Wires {
    fn now(&self) -> Duration {
        self.bus.now().saturating_sub(self.began)
    }

    fn set_members(&self, members: &Membership, others: &[Member], _: usize) {
        let others = others.iter().map(|other| other.worker).collect();
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = Some((members.clone(), others));
    }

    fn join_replica(&self, _: Generation, _: Vec<WorkerId>) {}

    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>) {
        if let Some(atoms) = self.atoms.as_ref().filter(|_| header.kind == FrameKind::Local) {
            atoms.sends_local(self.process, &header, &body);
        }
        if !self.is_member(to) {
            return;
        }
        let hash = hash.unwrap_or_else(|| *blake3::hash(&body).as_bytes());
        let from = self.process.worker;
        let frame = Frame { from, header, body, hash };
        self.bus.say(Said::ToPeer { from, to, event: SyncEvent::Frame { frame, memory: Box::new(()) } });
    }

    fn pull(&self, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>) {
        let (bus, to) = (self.bus.clone(), self.process);
        let told = move |found: Option<Option<(Bytes, Hash)>>| {
            let answer = found.flatten().filter(|(_, got)| hash.is_none_or(|wanted| wanted == *got));
            let event = SyncEvent::Pulled { round, fragment, from, answer };
            bus.say(Said::Answer { from, to, event });
        };
        if !self.is_member(from) {
            return told(None);
        }
        let event = SyncEvent::ServeResult { round, fragment, reply: reply(told) };
        self.bus.say(Said::ToPeer { from: self.process.worker, to: from, event });
    }

    fn heal(&self, attempt: u64, donors: Vec<Member>, _: usize, _: usize) {
        let donors = donors.into_iter().map(|donor| donor.worker).collect();
        heal_from(self.bus.clone(), self.process, attempt, donors);
    }

    fn stop_healing(&self) {}

    fn fetch_parts(&self, attempt: u64, store: CheckpointStore, parts: Vec<HeldPart>, wanted: ModelSpec) {
        let copied = parts.iter().try_for_each(|part| self.disks.copy(self.run, &store, part, Some(&wanted)));
        let answer = copied.map(|()| parts).map_err(|error| format!("{error:#}"));
        self.answer(SyncEvent::CopiesHere { attempt, answer });
    }

    fn keep(&self, store: CheckpointStore, part: HeldPart) {
        let copied = self.disks.copy(self.run, &store, &part, None);
        let kept = copied.ok().map(|()| CheckpointOffer { private: false, ..part.offer });
        self.answer(SyncEvent::Kept(kept));
    }

    fn fetch_mask_secrets(&self, generation: Generation, from: Vec<WorkerId>) {
        for peer in from {
            let (bus, to) = (self.bus.clone(), self.process);
            let reply = reply(move |secret: Option<Option<_>>| {
                if let Some(secret) = secret.flatten() {
                    let event = SyncEvent::MaskSecret { generation, from: peer, secret };
                    bus.say(Said::Answer { from: peer, to, event });
                }
            });
            let event = SyncEvent::ServeMaskSecret { generation, peer: self.process.worker, reply };
            self.bus.say(Said::ToPeer { from: self.process.worker, to: peer, event });
        }
    }

    fn round_trip(&self) -> Duration {
        self.round_trip
    }

    fn start_site(&self, _: SiteJob) -> io::Result<()> {
        Err(io::Error::other("each worker of this world is a site of its own"))
    }

    fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.bus.say(Said::ToDevice { to: self.process, message });
        Ok(())
    }

    fn barrier(&self) -> &StepBarrier {
        &self.barrier
    }

    fn report(&self, message: ToCoordinator) {
        if let (Some(atoms), ToCoordinator::Ready(ready)) = (&self.atoms, &message) {
            atoms.starts(self.process, ready.next_round);
        }
        self.bus.say(Said::ToCoordinator { from: self.process, message });
    }

    fn heartbeat(&self) -> Heartbeat {
        Heartbeat::default()
    }

    fn in_background(&self, _: &str, job: Background) -> io::Result<()> {
        self.answer(job());
        Ok(())
    }

    fn begin(&self, _: Activity) -> Ongoing {
        Box::new(())
    }

    fn begin_coding(&self, _: Activity) -> Ongoing {
        Box::new(())
    }

    fn encodes(&self, _: Option<Encoding>) {}

    fn dense_equivalent(&self, _: u64) {}

    fn hears(&self, event: &Event) {
        self.atoms.iter().for_each(|atoms| atoms.hears(self.process, event));
    }

    fn decides(&self, command: &Command) {
        self.atoms.iter().for_each(|atoms| atoms.decides(self.process, command));
    }
}
