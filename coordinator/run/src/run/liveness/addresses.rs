//! Workers whose addresses change while they take part: the others receive the new one with the next generation, which
//! begins for it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_common::plan::Member;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::event::ConnectionId;
use crate::run::liveness::Liveness;
use crate::run::peer::Peer;

/// A generation that begins has the exchange that is open begin anew. So after one that began for a worker's new address no other one does for so long,
const PAUSE: Duration = Duration::from_secs(2);
/// and each time for twice as long, up to this: an address that changes all the time costs the others little, and its worker its part in the run.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// After so long at one address, the next time is a first time.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// Workers that have moved, and the earliest time of a generation for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Moves {
    by_worker: BTreeMap<WorkerId, Move>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Move {
    due: Duration,
    times: u32,
}

impl Moves {
    /// A worker has another address.
    fn note(&mut self, now: Duration, worker: WorkerId) {
        let before = self.by_worker.get(&worker).copied().filter(|last| last.due + FORGOTTEN_AFTER > now);
        let next = match before {
            None => Move { due: now, times: 0 },
            // The last change is not announced yet.
            Some(last) if last.due > now => last,
            Some(Move { due, times }) => {
                let pause = PAUSE.saturating_mul(1 << times.min(16)).min(PAUSE_MAX);
                Move { due: now.max(due + pause), times: times + 1 }
            }
        };
        self.by_worker.insert(worker, next);
    }

    /// A worker is not here any more, or another process of it is.
    pub fn forget(&mut self, worker: WorkerId) {
        self.by_worker.remove(&worker);
    }
}

impl Liveness {
    /// A connection goes on from another address (RFC 9000, section 9). Where its worker is reached at the one of before, it is reached at this one now.
    pub(crate) fn handle_moved(&mut self, core: &mut Core, connection: ConnectionId, address: IpAddr) {
        let Some(open) = core.connections.get_mut(&connection) else { return };
        let (worker, before) = (open.worker, std::mem::replace(&mut open.address, address));
        let Some(peer) = core.peers.get_mut(&worker).filter(|peer| peer.connection == Some(connection))
        else {
            return;
        };
        let now_at = |place: SocketAddr| match place.ip() == before {
            true => SocketAddr::new(address, place.port()),
            false => place,
        };
        let known = &peer.known;
        let (lan_address, wan_address) = (now_at(known.lan_address), now_at(known.wan_address));
        if known.is_at(lan_address, wan_address) {
            return;
        }
        (peer.known.lan_address, peer.known.wan_address) = (lan_address, wan_address);
        let known = peer.known.clone();
        core.state.roster.workers.insert(worker, known);
        self.note_move(core, worker, wan_address);
    }

    /// A worker is at another address than before.
    pub(crate) fn note_move(&mut self, core: &mut Core, worker: WorkerId, wan_address: SocketAddr) {
        self.moves.note(core.now, worker);
        core.notice(Severity::Info, Some(worker), format!("is at {wan_address} now"));
    }

    /// When a generation begins because a member is not where the others look for it. None: they all are.
    pub(crate) fn moves_are_told_at(&self, core: &Core) -> Option<Duration> {
        let lineup = core.state.generations.present.as_ref().filter(|_| !core.is_closing())?;
        let moved = |(member, peer): &(&Member, &Peer)| {
            // Only its own site goes by the other one.
            let has_neighbours =
                || lineup.members().any(|other| other.site == member.site && other.worker != member.worker);
            peer.known.wan_address != member.wan_address
                || peer.known.lan_address != member.lan_address && has_neighbours()
        };
        let due = |(member, _): (&Member, &Peer)| {
            self.moves.by_worker.get(&member.worker).map_or(core.now, |known| known.due)
        };
        match &*lineup.groups {
            // Both are sorted: in a large run, looking each member up takes longer than all else here.
            [group] => in_both(group.membership.members(), &core.peers).filter(moved).map(due).min(),
            _ => {
                let here =
                    lineup.members().filter_map(|member| Some((member, core.peers.get(&member.worker)?)));
                here.filter(moved).map(due).min()
            }
        }
    }
}

/// The members that are here.
fn in_both<'a>(
    members: &'a [Member],
    peers: &'a BTreeMap<WorkerId, Peer>,
) -> impl Iterator<Item = (&'a Member, &'a Peer)> {
    let mut peers = peers.iter().peekable();
    members.iter().filter_map(move |member| {
        while peers.next_if(|(worker, _)| **worker < member.worker).is_some() {}
        peers.next_if(|(worker, _)| **worker == member.worker).map(|(_, peer)| (member, peer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moves_again_and_again_is_told_of_less_and_less_often() {
        let s = Duration::from_secs;
        let (mut moves, worker) = (Moves::default(), WorkerId(7));
        let mut due = |at: u64| {
            moves.note(s(at), worker);
            moves.by_worker[&worker].due
        };
        assert_eq!(due(10), s(10), "the first time at once");
        assert_eq!([due(11), due(11)], [s(12), s(12)], "two seconds after the first one");
        assert_eq!([due(13), due(20)], [s(16), s(24)]);
        assert_eq!(due(400), s(400), "long after");
        assert_eq!(due(1001), s(1001), "a first time");
        assert_eq!(due(1002), s(1003));
    }
}
