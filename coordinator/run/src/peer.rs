//! A worker as the run sees it now.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{CheckpointOffer, DataAt, DataHolders, Hash, Ready};
use serde::{Deserialize, Serialize};

use crate::accounting::progress::Meter;
use crate::accounting::punctuality::Punctuality;
use crate::event::ConnectionId;
use crate::liveness::silence::Silence;
use crate::placement::seats::Seat;
use crate::state::Known;

/// Every member takes the same share of the ownership, as nobody has measured its upload yet.
const UPLOAD_WEIGHT: u32 = 1;

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Standing {
    /// Joined, not told anything yet.
    Waiting,
    /// Told to [`Prepare`](longhaul_proto::control::message::ToWorker::Prepare).
    Preparing,
    /// Told to [`Heal`](longhaul_proto::control::message::ToWorker::Heal).
    Healing,
    /// Holds a state, and waits for a generation.
    Ready,
    /// Takes part in the generation. Without a connection it is *awaited*: the grace after a restart lets it return.
    Member,
}

/// A process that has joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Peer {
    pub known: Known,
    pub connection: Option<ConnectionId>,
    pub silence: Silence,
    pub standing: Standing,
    /// Which part of the model it has, and with whom; none: it waits until there are enough workers for another copy.
    pub seat: Option<Seat>,
    pub checkpoints: PeerCheckpoints,
    pub data: PeerData,
    pub start: PeerStart,
    pub progress: PeerProgress,
}

/// Which checkpoints a worker has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerCheckpoints {
    pub offers: Vec<CheckpointOffer>,
    /// Whether it has said which checkpoints the archive has.
    pub has_told_archive: bool,
    /// It was asked to keep a copy of a checkpoint, and has not answered.
    pub is_keeping: bool,
}

/// What a worker has of the run's data, and was told of who else has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerData {
    /// None: it has not said yet.
    pub at: Option<DataAt>,
    /// It has said so to another coordinator, which is gone.
    pub has_to_tell: bool,
    /// How often that was told to people.
    pub notices: u8,
    /// Who it was told has it; none: that is due.
    pub told_holders: Option<DataHolders>,
}

/// The state that a worker starts from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerStart {
    /// Its last answer to `Prepare` or `Heal`, and when that came.
    pub ready: Option<Ready>,
    pub ready_at: Duration,
    /// The state that it has, or was last told to load, is in a checkpoint that it wrote: what it had yet to send comes back with that. One that it fetches from others brings none of it.
    pub loads_own: bool,
    /// Whom it was told to heal from.
    pub donors: Vec<WorkerId>,
    /// How often it was told to heal without becoming equal.
    pub heals: u32,
    /// The earliest round that a settlement left open since it was told to heal. A state that contains it may come from
    /// a member that has died, and the survivors may have done that round again with another result.
    pub reopened: Option<Round>,
}

/// How far a worker has come, as it has told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerProgress {
    /// Rounds before this one are applied there; none until it says so.
    pub next_round: Option<Round>,
    /// After the last round that it reported.
    pub state_hash: Option<Hash>,
    /// The newest of the rounds that all have applied whose result has what it contributed. Only people want to know.
    #[serde(skip)]
    pub contributed: Option<Round>,
    /// What it said when it had nothing left to do.
    pub finished: Option<Round>,
    /// What it said then: its loss on the held-out samples,
    pub validation_loss: Option<f32>,
    /// and the share of them, where they are images, whose class it told.
    pub validation_accuracy: Option<f32>,
    pub meter: Meter,
    pub punctuality: Punctuality,
}

impl Peer {
    pub fn new(known: Known, connection: Option<ConnectionId>, now: Duration) -> Self {
        let start = PeerStart {
            ready: None,
            ready_at: now,
            loads_own: false,
            donors: Vec::new(),
            heals: 0,
            reopened: None,
        };
        Self {
            known,
            connection,
            silence: Silence::new(now),
            standing: Standing::Waiting,
            seat: None,
            checkpoints: PeerCheckpoints::default(),
            data: PeerData::default(),
            start,
            progress: PeerProgress::default(),
        }
    }

    /// Its process is a member of the generation, and here.
    pub fn is_present_member(&self) -> bool {
        self.standing == Standing::Member && self.connection.is_some()
    }

    /// The run waits for it to come back.
    pub fn is_awaited(&self) -> bool {
        self.standing == Standing::Member && self.connection.is_none()
    }

    /// Whether it has not applied the first round that does not count yet, or has not said that it has.
    pub fn is_behind(&self, through: Round) -> bool {
        self.progress.next_round.is_none_or(|next| next <= through)
    }

    /// Whether its healed state may contain a round that was done again since.
    pub fn holds_undone(&self) -> bool {
        self.start.reopened.zip(self.progress.next_round).is_some_and(|(reopened, next)| next > reopened)
    }

    pub fn member(&self, worker: WorkerId) -> Member {
        Member {
            worker,
            site: self.known.site,
            lan_address: self.known.lan_address,
            wan_address: self.known.wan_address,
            upload_weight: UPLOAD_WEIGHT,
        }
    }
}

/// An unspecified address means: as the coordinator sees the worker, with this port.
pub(super) fn resolve(stated: SocketAddr, seen: IpAddr) -> SocketAddr {
    if stated.ip().is_unspecified() { SocketAddr::new(seen, stated.port()) } else { stated }
}

/// The number of a site, by its name; a new name gets the next number.
pub(super) fn site_number(sites: &mut Vec<String>, name: &str) -> SiteId {
    let at = sites.iter().position(|known| known == name).unwrap_or_else(|| {
        sites.push(name.to_owned());
        sites.len() - 1
    });
    SiteId(u32::try_from(at).unwrap_or(u32::MAX))
}
