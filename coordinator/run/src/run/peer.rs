//! A worker in the coordinator's view.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{
    CheckpointOffer, DataAt, DataHolders, Hash, ModelAt, ModelHolders, Ready,
};
use serde::{Deserialize, Serialize};

use crate::run::accounting::progress::Meter;
use crate::run::accounting::punctuality::Punctuality;
use crate::run::event::ConnectionId;
use crate::run::liveness::silence::Silence;
use crate::run::placement::slots::ReplicaSlot;
use crate::run::state::Known;

/// All members own equal shares: their upload bandwidth is not measured yet.
const UPLOAD_WEIGHT: u32 = 1;

/// Activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Standing {
    /// Joined, without orders yet.
    Waiting,
    /// Ordered to [`Prepare`](longhaul_proto::control::message::ToWorker::Prepare).
    Preparing,
    /// Ordered to [`Heal`](longhaul_proto::control::message::ToWorker::Heal).
    Healing,
    /// Holds a state, and waits for a generation.
    Ready,
    /// Takes part in the generation. Without a connection it is *awaited*: the grace period after a restart lets it
    /// return.
    Member,
}

/// A process that has joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Peer {
    pub known: Known,
    pub connection: Option<ConnectionId>,
    pub silence: Silence,
    pub standing: Standing,
    /// Its part of the model and its copy; `None`: it waits for enough workers for another copy.
    pub slot: Option<ReplicaSlot>,
    pub checkpoints: PeerCheckpoints,
    pub data: PeerData,
    pub model: PeerModel,
    pub start: PeerStart,
    pub progress: PeerProgress,
}

/// Checkpoints of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerCheckpoints {
    pub offers: Vec<CheckpointOffer>,
    /// Whether it has reported the archive's checkpoints.
    pub has_told_archive: bool,
    /// It was asked to keep a copy of a checkpoint, and has not answered.
    pub is_keeping: bool,
}

/// A worker's share of the run's data, and the holders that it knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerData {
    /// `None`: not reported yet.
    pub at: Option<DataAt>,
    /// It has reported to an earlier coordinator alone.
    pub has_to_tell: bool,
    /// Notices about its data so far.
    pub notices: u8,
    /// Holders last sent to it; `None`: due.
    pub told_holders: Option<DataHolders>,
}

/// A worker's copy of the pretrained model that the run starts from, and the holders that it knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerModel {
    /// `None`: not reported yet.
    pub at: Option<ModelAt>,
    /// It has reported to an earlier coordinator alone.
    pub has_to_tell: bool,
    /// Notices about it so far.
    pub notices: u8,
    /// Whether it fetches the model from other sites, for all of its site.
    pub is_carrier: bool,
    /// Holders last sent to it; `None`: due.
    pub told_holders: Option<ModelHolders>,
}

/// The state that a worker starts from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerStart {
    /// Its last answer to `Prepare` or `Heal`, and the time of arrival.
    pub ready: Option<Ready>,
    pub ready_at: Duration,
    /// Its state is, or was last ordered to be, from a checkpoint of its own, which restores its unsent changes. A checkpoint fetched from others does not.
    pub loads_own: bool,
    /// Donors of its last order to heal.
    pub donors: Vec<WorkerId>,
    /// Orders to heal that did not make it equal.
    pub heals: u32,
    /// The earliest round that a settlement left open since its order to heal. A state that contains it may come from a
    /// member that has died, and the survivors may have repeated that round with another result.
    pub reopened: Option<Round>,
}

/// Reported progress of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerProgress {
    /// Rounds before this one are applied there; `None`: not reported yet.
    pub next_round: Option<Round>,
    /// Rounds before this one have all their results there, as told when a generation ended.
    pub complete: Option<Round>,
    /// Hash after the last reported round.
    pub state_hash: Option<Hash>,
    /// The newest round applied by all whose result contains its contribution. For display alone.
    #[serde(skip)]
    pub contributed: Option<Round>,
    /// Its report of having nothing left to do.
    pub finished: Option<Round>,
    /// Its loss on the held-out samples, from that report.
    pub validation_loss: Option<f32>,
    /// Share of held-out images that it classified correctly, from that report.
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
            slot: None,
            checkpoints: PeerCheckpoints::default(),
            data: PeerData::default(),
            model: PeerModel::default(),
            start,
            progress: PeerProgress::default(),
        }
    }

    /// Whether its process is a member of the generation, and connected.
    pub fn is_present_member(&self) -> bool {
        self.standing == Standing::Member && self.connection.is_some()
    }

    /// Whether the run waits for its return.
    pub fn is_awaited(&self) -> bool {
        self.standing == Standing::Member && self.connection.is_none()
    }

    /// Whether it has not reported to have applied the first round that does not count yet.
    pub fn is_behind(&self, through: Round) -> bool {
        self.progress.next_round.is_none_or(|next| next <= through)
    }

    /// Whether it is present and has applied every round before `through`: one that joined lately may still be catching up. `None`: it has reported none since the
    /// coordinator started.
    pub fn has_caught_up(&self, through: Round) -> Option<bool> {
        self.progress.next_round.map(|next| self.is_present_member() && next >= through)
    }

    /// The round before which it has all results, as far as it has told.
    pub fn holds_before(&self) -> Option<Round> {
        self.progress.next_round.max(self.progress.complete)
    }

    /// Whether its healed state may contain a round that was repeated since.
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

/// Replaces an unspecified address with the one that the coordinator sees, keeping the port.
pub(super) fn resolve(stated: SocketAddr, seen: IpAddr) -> SocketAddr {
    if stated.ip().is_unspecified() { SocketAddr::new(seen, stated.port()) } else { stated }
}

/// Returns the number of a site by name; a new name gets the next number.
pub(super) fn site_number(sites: &mut Vec<String>, name: &str) -> SiteId {
    let at = sites.iter().position(|known| known == name).unwrap_or_else(|| {
        sites.push(name.to_owned());
        sites.len() - 1
    });
    SiteId(u32::try_from(at).unwrap_or(u32::MAX))
}
