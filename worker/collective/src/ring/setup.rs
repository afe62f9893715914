use std::net::SocketAddr;
use std::time::Duration;

use longhaul_common::id::WorkerId;

use super::hello::{self, Group};
use super::stop::Stop;
use super::tls::SiteTls;
use crate::{CollectiveError, Peer};

/// Members of a site, at most. Statements of all members are held at once: 32 KiB.
const MEMBERS_MAX: usize = 1024;

/// A member of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMember {
    /// Who it is: its certificate must say so.
    pub worker: WorkerId,
    /// Where it listens for the member before it.
    pub address: SocketAddr,
}

/// Who joins whom.
#[derive(Clone, Debug)]
pub struct RingSetup {
    /// All members, in order of rank: the same list for all.
    pub members: Vec<RingMember>,
    /// This member's place in the list.
    pub rank: usize,
    /// The same for all. Members of another session are not let in; the generation will do.
    pub session: u64,
    /// This worker's certificate, and whom it trusts.
    pub tls: SiteTls,
    /// How long a call may take.
    pub call_max: Duration,
    /// How long joining may take.
    pub join_max: Duration,
    /// Ends all waiting before its time.
    pub stop: Stop,
}

/// A member's place, while it joins.
pub(super) struct Seat<'a> {
    pub members: &'a [RingMember],
    pub rank: usize,
    pub group: Group,
    pub tls: &'a SiteTls,
    pub stop: &'a Stop,
}

impl RingSetup {
    /// Checks the list of members.
    pub(super) fn seat(&self) -> Result<Seat<'_>, CollectiveError> {
        let (members, rank) = (&self.members, self.rank);
        let refuse = |why: String| Err(CollectiveError::Members(why));
        if members.len() > MEMBERS_MAX {
            return refuse(format!("a site of {} members is more than {MEMBERS_MAX}", members.len()));
        }
        if rank >= members.len() {
            return refuse(format!("rank {rank} is not in a list of {} members", members.len()));
        }
        let mut workers: Vec<_> = members.iter().map(|member| member.worker).collect();
        workers.sort_unstable();
        if let Some(pair) = workers.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!("{} is twice in the list of members", pair[0]));
        }
        let group = hello::group(self.session, members.iter().map(|member| member.worker));
        Ok(Seat { members, rank, group, tls: &self.tls, stop: &self.stop })
    }
}

impl Seat<'_> {
    pub fn next(&self) -> Peer {
        peer(self.members, (self.rank + 1) % self.members.len())
    }

    pub fn previous(&self) -> Peer {
        peer(self.members, (self.rank + self.members.len() - 1) % self.members.len())
    }
}

/// A member as errors name it.
pub(super) fn peer(members: &[RingMember], rank: usize) -> Peer {
    let RingMember { worker, address } = members[rank];
    Peer { rank, worker, address }
}
