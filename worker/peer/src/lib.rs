//! The data plane: frames to and from the other workers, and results and state on request.
//!
//! It carries the messages of [`longhaul_member`] and the device, and knows neither models nor training.
#![forbid(unsafe_code)]

mod base_model;
mod copies;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub mod fuzz;
mod heal;
mod link_table;
mod liveness;
mod mask_secrets;
mod peer;
mod peer_data;
mod probe;
mod reach;
mod reply;
mod request;
mod revoked;
mod serve;
mod site;
mod snapshots;
pub mod stage_inbox;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_checkpoint::CheckpointStore;
use longhaul_collective::Stop;
use longhaul_common::id::{FragmentId, Round, RunId, SiteId, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::Member;
use longhaul_member::SyncEvent;
use longhaul_proto::control::message::Hash;
use longhaul_proto::frame::{FRAME_HEADER_BYTES, FrameMeta};
use longhaul_proto::identity::{self, Identity};
use longhaul_proto::round::FrameHeader;
use longhaul_proto::transport;
use longhaul_proto::transport::bulk::ReceiveLimits;
use quinn::{ClientConfig, Endpoint};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use self::base_model::ModelProgress;
use self::base_model::SharedModel;
use self::liveness::PeerLiveness;
pub use self::liveness::{ANSWER_MAX, Shown};
use self::peer::{Peer, Room};
pub use self::peer_data::FoundData;
use self::peer_data::PeerData;
use self::reply::reply;
use self::site::SiteAcceptor;
pub use self::site::{SiteAcceptorError, bind};
use self::snapshots::Snapshots;
pub use self::stage_inbox::StageGroup;
use self::stage_inbox::{Interrupted, StageInbox};
use longhaul_flight::Progress;

/// Timeout of a pull, after which another holder is asked: the largest frame over 10 Mbit/s takes 14 s, and a new connection 10 s.
const PULL_MAX: Duration = Duration::from_secs(60);

/// Interval at which a sender waiting for room in a queue checks that its replica still exists.
const STAGE_LOOK: Duration = Duration::from_millis(100);

/// This worker's connections to the others, for one session.
pub struct Network {
    endpoint: Endpoint,
    own: Own,
    queue: mpsc::Sender<SyncEvent>,
    progress: Arc<Progress>,
    runtime: Handle,
    state: Mutex<State>,
    /// Generation for which mask secrets are fetched.
    masked_generation: AtomicU64,
    /// Whether a copy of another worker's checkpoint is in flight.
    keeping: AtomicBool,
    stage_inbox: StageInbox,
    /// Parts of the state fetched by peers.
    snapshots: Snapshots,
    /// Signs of life from workers of this site.
    signs: PeerLiveness,
    /// Training data of this worker and of others.
    peer_data: PeerData,
    /// The pretrained model of this worker and of others.
    shared_model: SharedModel,
    /// Ends all waiting of a tensor group.
    group_stop: Stop,
    excluded: Excluded,
    stopped: watch::Sender<bool>,
}

/// This worker.
#[derive(Clone, Copy, Debug)]
struct Own {
    run: RunId,
    worker: WorkerId,
    site: SiteId,
}

/// Workers not waited for.
struct Excluded {
    /// Removed from the run for good.
    revoked: watch::Sender<BTreeSet<WorkerId>>,
    /// Unresponsive when last waited for.
    out_of_reach: watch::Sender<BTreeSet<WorkerId>>,
}

struct State {
    client: ClientConfig,
    peers: BTreeMap<WorkerId, Arc<Peer>>,
    acceptor: SiteAcceptor,
    /// Task that fetches the state of the run.
    healing: Option<AbortHandle>,
    /// Checkpoints of any part offered to peers; `None`: not offered.
    checkpoints: Option<(CheckpointStore, ModelSpec)>,
}

impl Network {
    /// Returns this worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.own.worker
    }

    /// Accepts connections of peers at `endpoint`; `limits` bounds the memory of their frames, from a frame's header until the synchroniser has taken it.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn start(
        endpoint: Endpoint,
        identity: &Identity,
        site: SiteId,
        queue: mpsc::Sender<SyncEvent>,
        progress: Arc<Progress>,
        limits: ReceiveLimits,
    ) -> Result<Arc<Self>> {
        let acceptor = SiteAcceptor::new(identity)?;
        let (client, peers) = (client_of(identity)?, BTreeMap::new());
        let state = State { client, peers, acceptor, healing: None, checkpoints: None };
        let network = Arc::new(Self {
            endpoint,
            own: Own { run: identity.run(), worker: identity.worker(), site },
            queue,
            progress,
            runtime: Handle::current(),
            state: Mutex::new(state),
            masked_generation: AtomicU64::new(0),
            keeping: AtomicBool::new(false),
            stage_inbox: StageInbox::default(),
            snapshots: Snapshots::default(),
            signs: PeerLiveness::default(),
            peer_data: PeerData::default(),
            shared_model: SharedModel::default(),
            group_stop: Stop::default(),
            excluded: Excluded {
                revoked: watch::channel(BTreeSet::new()).0,
                out_of_reach: watch::channel(BTreeSet::new()).0,
            },
            stopped: watch::channel(false).0,
        });
        network.spawn(reach::watch_over(Arc::clone(&network)));
        network.runtime.spawn(serve::accept(Arc::clone(&network), limits));
        Ok(network)
    }

    /// Replaces the other members. `model_bytes`: a round's update of the whole model in f32.
    pub fn set_members(self: &Arc<Self>, members: &[Member], model_bytes: usize) {
        let workers: BTreeSet<WorkerId> = members.iter().map(|member| member.worker).collect();
        let mut state = self.lock();
        state.peers.retain(|worker, _| workers.contains(worker));
        // An older message of the coordinator may arrive after a removal.
        let is_other = |member: &&Member| member.worker != self.own.worker && !self.is_revoked(member.worker);
        for member in members.iter().filter(is_other) {
            let address = self.address_of(member);
            if state.peers.get(&member.worker).is_none_or(|peer| peer.address != address) {
                let peer = Peer::start(self, member.worker, member.site, address, model_bytes);
                state.peers.insert(member.worker, peer);
            }
        }
    }

    /// Queues a frame of the round protocol. A frame to a non-member or a full queue is dropped: the next generation repairs the loss. A queue has room for
    /// all frames by which others may be ahead of a peer.
    pub fn send(&self, to: WorkerId, header: FrameHeader, body: Bytes, hash: Option<Hash>) {
        let meta = FrameMeta {
            kind: header.kind.into(),
            generation: header.generation,
            round: header.round,
            fragment: header.fragment,
            sender: self.own.worker,
            weight: header.weight,
            part: header.site.0,
        };
        let peer = self.lock().peers.get(&to).cloned();
        let Some(peer) = peer else { return };
        match peer.room(body.len()) {
            Some(room) => self.fill(&peer, room, meta, body, hash),
            None => tracing::warn!(peer = %to, "the queue to a peer is full; a frame was dropped"),
        }
    }

    /// Queues a frame after counting it: the count includes every received frame.
    fn fill(&self, peer: &Peer, room: Room<'_>, meta: FrameMeta, body: Bytes, hash: Option<Hash>) {
        self.progress.sent((body.len() + FRAME_HEADER_BYTES) as u64, peer.site != self.own.site);
        room.put(meta, body, hash);
    }

    /// Joins this replica for computation; `None`: alone. Interrupts waits for an earlier one.
    pub fn join_replica(&self, replica: Option<StageGroup>) {
        self.stage_inbox.open(replica);
    }

    /// Returns the frames from other ranks of this worker's replica.
    #[must_use]
    pub fn stage_inbox(&self) -> &StageInbox {
        &self.stage_inbox
    }

    /// Returns this worker's counts and records.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the stop signal of a tensor group, set when this network stops.
    #[must_use]
    pub fn group_stop(&self) -> Stop {
        self.group_stop.clone()
    }

    /// Queues a frame for another rank of this worker's replica, and waits for room in the queue.
    ///
    /// # Errors
    /// The session is over, or the receiver is no member.
    pub fn send_stage(&self, to: WorkerId, meta: FrameMeta, body: Bytes) -> Result<(), Interrupted> {
        let peer = self.lock().peers.get(&to).cloned().ok_or(Interrupted)?;
        loop {
            if let Some(room) = self.runtime.block_on(peer.room_within(STAGE_LOOK, body.len())) {
                self.fill(&peer, room, meta, body, None);
                return Ok(());
            }
            if !self.stage_inbox.is_open(meta.generation) {
                return Err(Interrupted);
            }
        }
    }

    /// Requests a result from a peer; the answer is [`SyncEvent::Pulled`].
    pub fn pull(self: &Arc<Self>, from: WorkerId, round: Round, fragment: FragmentId, hash: Option<Hash>) {
        let network = Arc::clone(self);
        self.spawn(async move {
            let fetched = timeout(PULL_MAX, network.fetch_result(from, round, fragment)).await;
            let answer =
                fetched.ok().and_then(Result::ok).filter(|(_, got)| hash.is_none_or(|wanted| wanted == *got));
            // The synchroniser may have ended.
            let _ = network.queue.send(SyncEvent::Pulled { round, fragment, from, answer }).await;
        });
    }

    /// Fetches the run's state from these donors, as `buffers` vectors of `values`; the answer is [`SyncEvent::Healed`], with the attempt's number. An
    /// earlier attempt ends.
    pub fn heal(self: &Arc<Self>, attempt: u64, donors: Vec<Member>, buffers: usize, values: usize) {
        self.stop_healing();
        let network = Arc::clone(self);
        let healing = self.spawn(async move {
            let answer = heal::fetch_state(&network, donors, buffers, values).await;
            let answer = answer.map_err(|error| format!("{error:#}"));
            let _ = network.queue.send(SyncEvent::Healed { attempt, answer }).await;
        });
        self.lock().healing = Some(healing);
    }

    /// Cancels the fetch of the state: donors drop their copies.
    pub fn stop_healing(&self) {
        if let Some(healing) = self.lock().healing.take() {
            healing.abort();
        }
    }

    /// Returns the longest round trip to a connected worker of another site, without the queues of this worker's own frames.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        let peers: Vec<_> =
            self.lock().peers.values().filter(|peer| peer.site != self.own.site).cloned().collect();
        peers.iter().filter_map(|peer| peer.round_trip()).max().unwrap_or_default()
    }

    /// Uses a renewed certificate for new connections.
    ///
    /// # Errors
    /// The identity cannot be used.
    pub fn use_identity(&self, identity: &Identity) -> Result<()> {
        let client = client_of(identity)?;
        let mut state = self.lock();
        state.client = client;
        state.acceptor.use_identity(identity)
    }

    /// Runs `then` when this network ends.
    pub fn at_end(&self, then: impl FnOnce() + Send + 'static) {
        let mut stopped = self.stopped.subscribe();
        self.runtime.spawn(async move {
            // A dropped network has ended as well.
            let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
            then();
        });
    }

    /// Ends all activity of this network. The endpoint stays: the control connection uses it too.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
        self.stage_inbox.open(None);
        self.group_stop.stop();
        self.peer_data.clear();
        self.shared_model.clear();
        let mut state = self.lock();
        state.peers.clear();
        state.acceptor.close();
    }

    async fn fetch_result(
        &self,
        from: WorkerId,
        round: Round,
        fragment: FragmentId,
    ) -> Result<(Bytes, Hash)> {
        let peer = self.lock().peers.get(&from).cloned().context("no member of this generation")?;
        let connection = peer.connection(self).await?;
        request::fetch_result(connection.connection(), round, fragment).await
    }

    fn address_of(&self, member: &Member) -> SocketAddr {
        if member.site == self.own.site { member.lan_address } else { member.wan_address }
    }

    fn client(&self) -> ClientConfig {
        self.lock().client.clone()
    }

    /// Returns the site of a member.
    fn site_of(&self, worker: WorkerId) -> Option<SiteId> {
        self.lock().peers.get(&worker).map(|peer| peer.site)
    }

    /// Runs a task that ends with this network.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut stopped = self.stopped.subscribe();
        let task = self.runtime.spawn(async move {
            tokio::select! {
                () = task => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
        task.abort_handle()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn client_of(identity: &Identity) -> Result<ClientConfig> {
    let tls = identity::data_client(identity).context("use this worker's identity")?;
    Ok(transport::client_config(tls))
}
