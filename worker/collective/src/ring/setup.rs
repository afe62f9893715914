use std::net::SocketAddr;
use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::hello::{self, Group};
use super::stop::Stop;
use super::tls::SiteTls;
use crate::{CollectiveError, Peer};

/// Most members of a site. Statements of all members are held at once: 32 KiB.
const MEMBERS_MAX: usize = 1024;

/// A member of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMember {
    /// Worker, as in its certificate.
    pub worker: WorkerId,
    /// Listening address for the previous member.
    pub address: SocketAddr,
}

/// Parameters of a join.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// All members, in order of rank: the same list for all.
    pub members: Vec<RingMember>,
    /// This member's index in the list.
    pub rank: usize,
    /// The same for all: members of another session are refused. The generation suffices.
    pub session: u64,
    /// This worker's certificate, and its trust anchor.
    pub tls: SiteTls,
    /// Longest time of a call.
    pub call_max: Duration,
    /// Longest time of joining.
    pub join_max: Duration,
    /// Ends all waiting early.
    pub stop: Stop,
}

/// A joining member's place.
pub(super) struct RingIdentity<'a> {
    pub members: &'a [RingMember],
    pub rank: usize,
    pub group: Group,
    pub tls: &'a SiteTls,
    pub stop: &'a Stop,
}

impl RingSetup {
    /// Checks the list of members.
    pub(super) fn identity(&self) -> Result<RingIdentity<'_>, CollectiveError> {
        let (members, rank) = (&self.members, self.rank);
        let refuse = |why: String| Err(CollectiveError::Members(why));
        if members.len() > MEMBERS_MAX {
            return refuse(format!("a site of {} members exceeds the limit of {MEMBERS_MAX}", members.len()));
        }
        if rank >= members.len() {
            return refuse(format!("rank {rank} is not in a list of {} members", members.len()));
        }
        let mut workers: Vec<_> = members.iter().map(|member| member.worker).collect();
        workers.sort_unstable();
        if let Some(pair) = workers.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!("the list of members has {} twice", pair[0]));
        }
        let group = hello::group(self.session, members.iter().map(|member| member.worker));
        Ok(RingIdentity { members, rank, group, tls: &self.tls, stop: &self.stop })
    }
}

impl RingIdentity<'_> {
    pub fn next(&self) -> Peer {
        peer(self.members, (self.rank + 1) % self.members.len())
    }

    pub fn previous(&self) -> Peer {
        peer(self.members, (self.rank + self.members.len() - 1) % self.members.len())
    }
}

/// Returns a member as named in errors.
pub(super) fn peer(members: &[RingMember], rank: usize) -> Peer {
    let RingMember { worker, address } = members[rank];
    Peer { rank, worker, address }
}
