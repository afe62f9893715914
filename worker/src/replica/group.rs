//! The tensor group of this worker's copy of the model, over its site's network.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_collective::{
    Collective, CollectiveError, Reduction, RingCollective, RingMember, RingSetup, Word,
};
use longhaul_common::config::WithinSite;
use longhaul_common::id::Generation;
use longhaul_common::plan::Member;
use longhaul_engine::models::MEMBERS_MAX;
use longhaul_flight::{Awaited, Progress};
use longhaul_member::activity::Activity;
use longhaul_nccl::{NcclCollective, NcclReach};
use longhaul_peer::{Network, SiteAcceptorError};
use tch::Device;

/// Timeout of a sum after the first member's arrival. All members have met at the beginning of the round (`Engine::meet`), so the others lag only by a slower device
/// within a round's steps, or by a busy synchroniser.
const SUM_MAX: Duration = Duration::from_secs(180);

/// A connection in a group that has not met yet.
pub struct GroupConnection {
    network: Arc<Network>,
    session: Generation,
    members: Vec<RingMember>,
    index: usize,
    way: WithinSite,
}

/// The group cannot meet.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The acceptor for members failed.
    #[error(transparent)]
    Acceptor(#[from] SiteAcceptorError),
    /// The members did not arrive.
    #[error("the tensor group is interrupted: {0}")]
    Collective(#[from] CollectiveError),
}

impl GroupConnection {
    /// Creates this worker's connection among the members that share its layers, ordered by index, all of one site and this generation.
    #[must_use]
    pub fn new(
        network: Arc<Network>,
        session: Generation,
        members: &[Member],
        way: WithinSite,
    ) -> Option<Self> {
        let index = members.iter().position(|member| member.worker == network.worker())?;
        let ring = |member: &Member| RingMember { worker: member.worker, address: member.lan_address };
        Some(Self { session, members: members.iter().map(ring).collect(), index, way, network })
    }

    /// Meets the other members. Sums use NCCL if configured within the site, available to all members, and these are on one machine; otherwise a ring.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn join(self, device: Device) -> Result<Box<dyn Collective>, GroupError> {
        let (listener, tls) = self.network.site_acceptor()?;
        let setup = RingSetup {
            members: self.members,
            rank: self.index,
            session: self.session.0,
            tls,
            call_max: SUM_MAX,
            // A member may have to catch up with rounds that another has healed past.
            join_max: MEMBERS_MAX,
            stop: self.network.group_stop(),
        };
        let mut ring = RingCollective::join(&setup, &listener)?;
        let is_by_nccl = self.way == WithinSite::Nccl && NcclCollective::can_serve(&mut ring, device)?;
        let inner: Box<dyn Collective> = if is_by_nccl {
            Box::new(NcclCollective::join(ring, device, NcclReach::OneMachine)?)
        } else {
            Box::new(ring)
        };
        tracing::info!(
            session = self.session.0,
            members = inner.size(),
            over = if is_by_nccl { "NCCL" } else { "a ring" },
            "the members of the tensor group have joined"
        );
        Ok(Box::new(Counted { inner, progress: Arc::clone(self.network.progress()) }))
    }
}

impl fmt::Debug for GroupConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, members, index, way, .. } = self;
        let mut said = f.debug_struct("GroupConnection");
        said.field("session", session).field("members", members).field("index", index).field("way", way);
        said.finish_non_exhaustive()
    }
}

/// Counts the bytes that a group sends within the site, and the time for which the device only waits.
struct Counted {
    inner: Box<dyn Collective>,
    progress: Arc<Progress>,
}

impl Counted {
    #[allow(clippy::disallowed_methods, reason = "measures what the device waits for the network")]
    fn timed<T>(&mut self, bytes: usize, call: impl FnOnce(&mut dyn Collective) -> T) -> T {
        let _waiting = self.progress.begin(Activity::WaitForOthers);
        self.progress.begins_to_wait(Awaited::Others, Instant::now());
        let answer = call(&mut *self.inner);
        self.progress.waited(Instant::now());
        self.progress.sent(bytes as u64, false);
        answer
    }

    /// A member's share of a ring's traffic for the sum of `values` values and its distribution: (n − 1)/n for each of the two.
    fn share_of(&self, values: usize) -> usize {
        let members = self.inner.size().max(1);
        values * size_of::<f32>() * (members - 1) / members
    }
}

impl Collective for Counted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError> {
        self.timed(2 * self.share_of(values.len()), |inner| inner.all_reduce(values, reduction))
    }

    fn reduce_scatter(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError> {
        self.timed(self.share_of(values.len()), |inner| inner.reduce_scatter(values, ranges, reduction))
    }

    fn all_gather(&mut self, values: &mut [f32], ranges: &[Range<usize>]) -> Result<(), CollectiveError> {
        self.timed(self.share_of(values.len()), |inner| inner.all_gather(values, ranges))
    }

    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError> {
        // The member before the root forwards nothing.
        let is_last = (self.rank() + 1) % self.size().max(1) == root;
        let sent = if is_last { 0 } else { bytes_max };
        self.timed(sent, |inner| inner.broadcast(root, bytes, bytes_max))
    }

    fn exchange(&mut self, word: Word, patience: Duration) -> Result<Vec<Word>, CollectiveError> {
        self.timed(size_of::<Word>(), |inner| inner.exchange(word, patience))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.timed(0, |inner| inner.barrier())
    }
}
