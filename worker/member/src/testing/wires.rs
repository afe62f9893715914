//! The environment of a test's worker: others are reached without a network, except for a site's ring, which is a real one on the loopback.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_collective::{Collective, RingCollective, RingSetup, SiteTls};
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::{Member, Membership};
use longhaul_proto::control::message::{Encoding, Hash, Heartbeat, HeldPart, ToCoordinator};
use longhaul_proto::round::{Frame, FrameHeader};

use super::replies::passed_on;
use super::world::World;
use crate::activity::Activity;
use crate::message::ToDevice;
use crate::step_barrier::StepBarrier;
use crate::{Background, HealedState, Ongoing, Outside, SiteEvent, SiteJob, SiteJoin, SiteLink, SyncEvent};

/// Interval between requests for a secret that does not exist yet.
const SECRET_AGAIN: Duration = Duration::from_millis(20);

pub struct Wires {
    pub world: Arc<World>,
    pub at: usize,
    pub worker: WorkerId,
    pub device: SyncSender<ToDevice>,
    pub barrier: Arc<StepBarrier>,
    pub reports: Sender<ToCoordinator>,
    pub acceptor: Acceptor,
    members: Mutex<Vec<WorkerId>>,
    site: SiteThread,
}

/// Thread of the reduction within the site, of this generation or an earlier one.
pub type SiteThread = Arc<Mutex<Option<JoinHandle<()>>>>;

/// Listener for members of the site.
#[derive(Clone)]
pub struct Acceptor {
    address: SocketAddr,
    tls: SiteTls,
    listener: Arc<Mutex<Option<Arc<TcpListener>>>>,
}

impl Acceptor {
    pub fn open(tls: SiteTls) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok(Self { address, tls, listener: Arc::new(Mutex::new(Some(Arc::new(listener)))) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Frees the port.
    pub fn close(&self) {
        *self.listener.lock().unwrap() = None;
    }

    fn listener(&self) -> Result<Arc<TcpListener>> {
        let mut listener = self.listener.lock().unwrap();
        let here = listener.take().map_or_else(|| TcpListener::bind(self.address).map(Arc::new), Ok);
        let here = here.with_context(|| format!("listen at {}", self.address))?;
        *listener = Some(Arc::clone(&here));
        Ok(here)
    }
}

impl Wires {
    pub fn new(
        (world, at, worker): (Arc<World>, usize, WorkerId),
        device: SyncSender<ToDevice>,
        barrier: Arc<StepBarrier>,
        reports: Sender<ToCoordinator>,
        (acceptor, site): (Acceptor, SiteThread),
    ) -> Self {
        let members = Mutex::default();
        Self { world, at, worker, device, barrier, reports, acceptor, members, site }
    }

    /// Returns the index of a worker, if it is a member.
    fn place_of(&self, worker: WorkerId) -> Option<usize> {
        let is_member = self.members.lock().unwrap().contains(&worker);
        self.world.place_of(worker).filter(|_| is_member)
    }
}

/// Asks these donors in turn.
fn heal_from(world: Arc<World>, at: usize, attempt: u64, mut donors: Vec<WorkerId>) {
    if donors.is_empty() {
        world.post(at, SyncEvent::Healed { attempt, answer: Err("no donor has the state".into()) });
        return;
    }
    let donor = donors.remove(0);
    let Some(place) = world.place_of(donor) else { return heal_from(world, at, attempt, donors) };
    let then = Arc::clone(&world);
    let reply = passed_on(move |state: Option<HealedState>| match state {
        Some(state) => drop(then.post(at, SyncEvent::Healed { attempt, answer: Ok(state) })),
        None => heal_from(then, at, attempt, donors),
    });
    world.post(place, SyncEvent::ServeState { from: Round(0), reply });
}

/// Asks for a secret until it exists.
fn ask_for_secret(
    world: &Arc<World>,
    (at, me): (usize, WorkerId),
    (place, peer): (usize, WorkerId),
    generation: Generation,
) -> SyncEvent {
    let then = Arc::clone(world);
    let reply = passed_on(move |secret: Option<Option<_>>| match secret.flatten() {
        Some(secret) => drop(then.post(at, SyncEvent::MaskSecret { generation, from: peer, secret })),
        None => {
            let again = ask_for_secret(&then, (at, me), (place, peer), generation);
            then.post_after(SECRET_AGAIN, place, again);
        }
    });
    SyncEvent::ServeMaskSecret { generation, peer: me, reply }
}

impl Outside for Wires {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn set_members(&self, members: &Membership, others: &[Member], _: usize) {
        let all = members.members().iter().chain(others);
        *self.members.lock().unwrap() = all.map(|member| member.worker).collect();
    }

    fn join_replica(&self, _: Generation, _: Vec<WorkerId>) {}

    fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>) {
        let Some(place) = self.place_of(to) else { return };
        let hash = hash.unwrap_or_else(|| *blake3::hash(&body).as_bytes());
        let frame = Frame { from: self.worker, header, body, hash };
        self.world.post(place, SyncEvent::Frame { frame, memory: Box::new(()) });
    }

    fn pull(&self, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>) {
        let (world, at) = (Arc::clone(&self.world), self.at);
        let told = move |found: Option<Option<(Bytes, Hash)>>| {
            let found = found.flatten();
            let answer = found.filter(|(_, got)| hash.is_none_or(|wanted| wanted == *got));
            world.post(at, SyncEvent::Pulled { round, fragment, from, answer });
        };
        match self.place_of(from) {
            Some(place) => {
                let reply = passed_on(told);
                self.world.post(place, SyncEvent::ServeResult { round, fragment, reply });
            }
            None => told(None),
        }
    }

    fn heal(&self, attempt: u64, donors: Vec<Member>, _: usize, _: usize) {
        let donors = donors.into_iter().map(|donor| donor.worker).collect();
        heal_from(Arc::clone(&self.world), self.at, attempt, donors);
    }

    fn stop_healing(&self) {}

    fn fetch_parts(&self, attempt: u64, _: CheckpointStore, _: Vec<HeldPart>, _: ModelSpec) {
        let answer = Err("no checkpoint has a holder".to_owned());
        self.world.post(self.at, SyncEvent::CopiesHere { attempt, answer });
    }

    fn keep(&self, _: CheckpointStore, _: HeldPart) {
        self.world.post(self.at, SyncEvent::Kept(None));
    }

    fn fetch_mask_secrets(&self, generation: Generation, from: Vec<WorkerId>) {
        for peer in from {
            let Some(place) = self.place_of(peer) else { continue };
            let ask = ask_for_secret(&self.world, (self.at, self.worker), (place, peer), generation);
            self.world.post(place, ask);
        }
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }

    fn start_site(&self, job: SiteJob) -> io::Result<()> {
        let mut site = self.site.lock().unwrap();
        let (before, busy) = (site.take(), self.world.busy());
        let link = RingLink { world: Arc::clone(&self.world), at: self.at, acceptor: self.acceptor.clone() };
        let thread = std::thread::Builder::new().spawn(move || {
            before.map(JoinHandle::join);
            job.run(&link);
            drop(busy);
        })?;
        *site = Some(thread);
        Ok(())
    }

    fn tell_device(&self, message: ToDevice) -> Result<()> {
        self.device.try_send(message).map_err(|error| anyhow!("tell the device: {error}"))
    }

    fn barrier(&self) -> &StepBarrier {
        &self.barrier
    }

    fn report(&self, message: ToCoordinator) {
        let _ = self.reports.send(message);
    }

    fn heartbeat(&self) -> Heartbeat {
        Heartbeat::default()
    }

    fn in_background(&self, _: &str, job: Background) -> io::Result<()> {
        self.world.post(self.at, job());
        Ok(())
    }

    fn begin(&self, activity: Activity) -> Ongoing {
        Box::new(self.world.spend(activity.name()))
    }

    fn begin_coding(&self, activity: Activity) -> Ongoing {
        self.begin(activity)
    }

    fn encodes(&self, _: Option<Encoding>) {}

    fn dense_equivalent(&self, _: u64) {}
}

/// A real ring, over TLS.
pub struct RingLink {
    pub world: Arc<World>,
    pub at: usize,
    pub acceptor: Acceptor,
}

impl SiteLink for RingLink {
    fn join(&self, join: &SiteJoin<'_>) -> Result<Box<dyn Collective>> {
        let setup = RingSetup {
            members: join.members.to_vec(),
            rank: join.rank,
            session: join.session,
            tls: self.acceptor.tls.clone(),
            call_max: join.call_max,
            join_max: join.join_max,
            stop: join.stop.clone(),
        };
        let listener = self.acceptor.listener()?;
        let ring = RingCollective::join(&setup, &listener)?;
        Ok(Box::new(ring))
    }

    fn begin(&self, _: Activity) -> Ongoing {
        Box::new(())
    }

    fn sent(&self, _: u64) {}

    fn tell(&self, event: SiteEvent) {
        self.world.post(self.at, SyncEvent::Site(event));
    }
}
