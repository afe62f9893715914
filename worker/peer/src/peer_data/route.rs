//! Choice and order of workers to ask for a block: a pure value without sockets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_data::BlockName;
use longhaul_proto::control::message::DataHolders;

/// Neighbours asked by a block's keeper before other sites: its keepers before this worker joined, if the last few joiners were others.
const ASKED_BEFORE_MAX: usize = 3;

/// A worker to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Worker.
    pub member: Member,
    /// Whether it should fetch a missing block first.
    pub is_to_fetch: bool,
}

/// A worker's place among others.
#[derive(Clone, Copy, Debug)]
pub struct PeerLocation {
    /// Worker.
    pub worker: WorkerId,
    /// Site.
    pub site: SiteId,
}

/// Reports whether a worker is a block's *keeper*: the one of a site's fetching workers that fetches it over the WAN, for all others. It follows from the
/// names alone (the highest hash); a joining or leaving worker changes no other block's keeper.
pub fn is_keeper(holders: &DataHolders, place: PeerLocation, block: BlockName) -> bool {
    let neighbours = holders.neighbours.iter().map(|member| member.worker);
    neighbours.max_by_key(|worker| (weight(*worker, block), *worker)) == Some(place.worker)
}

/// Returns the workers to ask in turn. `round_trips` are the known ones.
///
/// First the own site's holders, in an order by block that balances their load. Else the block's keeper, which fetches it. The keeper itself asks the keepers
/// in its absence, which were keepers before it joined; then holders elsewhere, the nearest first. Then all others.
pub fn route(
    holders: &DataHolders,
    place: PeerLocation,
    block: BlockName,
    round_trips: &BTreeMap<WorkerId, Duration>,
) -> Vec<Ask> {
    let others = |members: &[Member]| -> Vec<Member> {
        members.iter().filter(|member| member.worker != place.worker).cloned().collect()
    };
    let (mut near, mut far): (Vec<Member>, Vec<Member>) =
        others(&holders.holders).into_iter().partition(|member| member.site == place.site);
    // If no worker has all of it, those fetching it are holders as well, and are asked as neighbours.
    near.retain(|member| holders.neighbours.iter().all(|neighbour| neighbour.worker != member.worker));
    near.sort_by_key(|member| Reverse(weight(member.worker, block)));
    // An unknown worker is asked once, and known then.
    far.sort_by_key(|member| round_trips.get(&member.worker).copied().unwrap_or_default());
    let mut neighbours = others(&holders.neighbours);
    neighbours.sort_by_key(|member| Reverse((weight(member.worker, block), member.worker)));
    let plain = |member: Member| Ask { member, is_to_fetch: false };
    let mut asks: Vec<Ask> = near.into_iter().map(plain).collect();
    let rest = if is_keeper(holders, place, block) {
        let rest = neighbours.split_off(neighbours.len().min(ASKED_BEFORE_MAX));
        asks.extend(neighbours.into_iter().map(plain));
        rest
    } else {
        let rest = neighbours.split_off(neighbours.len().min(1));
        asks.extend(neighbours.into_iter().map(|member| Ask { member, is_to_fetch: true }));
        rest
    };
    asks.extend(far.into_iter().chain(rest).map(plain));
    asks
}

/// Rendezvous hashing (Thaler and Ravishankar, 1998).
fn weight(worker: WorkerId, block: BlockName) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&block.shard);
    hasher.update(&block.block.to_le_bytes());
    hasher.update(&worker.0.to_le_bytes());
    let mut word = [0; 8];
    hasher.finalize_xof().fill(&mut word);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn member(worker: u32, site: u32) -> Member {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let (worker, site) = (WorkerId(worker), SiteId(site));
        Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 }
    }

    fn place(worker: u32, site: u32) -> PeerLocation {
        PeerLocation { worker: WorkerId(worker), site: SiteId(site) }
    }

    fn block(number: u32) -> BlockName {
        BlockName { shard: [7; 32], block: number }
    }

    fn asked(holders: &DataHolders, place: PeerLocation, block: BlockName) -> Vec<(u32, bool)> {
        let far = BTreeMap::from([
            (WorkerId(21), Duration::from_millis(9)),
            (WorkerId(22), Duration::from_millis(3)),
        ]);
        let asks = route(holders, place, block, &far);
        asks.iter().map(|ask| (ask.member.worker.0, ask.is_to_fetch)).collect()
    }

    fn keeper(holders: &DataHolders, number: u32) -> u32 {
        let is_keeper = |member: &&Member| {
            is_keeper(holders, PeerLocation { worker: member.worker, site: member.site }, block(number))
        };
        let keepers: Vec<_> = holders.neighbours.iter().filter(is_keeper).collect();
        assert_eq!(keepers.len(), 1);
        keepers[0].worker.0
    }

    #[test]
    fn holders_of_the_own_site_are_asked_first_each_for_its_share_of_the_blocks() {
        let holders = [member(1, 1), member(2, 1), member(21, 2), member(22, 2)].to_vec();
        let holders = DataHolders { holders, ..DataHolders::default() };
        let firsts: Vec<u32> =
            (0..64).map(|number| asked(&holders, place(5, 1), block(number))[0].0).collect();
        for worker in [1, 2] {
            let share = firsts.iter().filter(|first| **first == worker).count();
            assert!((16..=48).contains(&share), "{share} of 64");
        }
        let last: Vec<_> = asked(&holders, place(5, 1), block(0)).split_off(2);
        assert_eq!(last, [(22, false), (21, false)]);
    }

    #[test]
    fn one_of_a_site_fetches_a_block_and_the_others_have_it_from_there() {
        let neighbours: Vec<Member> = (1..=4).map(|worker| member(worker, 1)).collect();
        let holders = DataHolders { holders: vec![member(21, 2)], neighbours, ..DataHolders::default() };
        for number in 0..32 {
            let keeper = keeper(&holders, number);
            for worker in 1..=4 {
                let asked = asked(&holders, place(worker, 1), block(number));
                match worker == keeper {
                    true => assert!(asked.iter().all(|(_, is_to_fetch)| !is_to_fetch) && asked[3].0 == 21),
                    false => assert_eq!(asked[..2], [(keeper, true), (21, false)]),
                }
            }
        }
    }

    #[test]
    fn who_comes_is_the_keeper_of_its_share_and_finds_what_the_keeper_before_has() {
        let of = |workers: std::ops::RangeInclusive<u32>| DataHolders {
            holders: vec![member(21, 2)],
            neighbours: workers.map(|worker| member(worker, 1)).collect(),
            ..DataHolders::default()
        };
        let (before, after) = (of(1..=4), of(1..=5));
        let mut taken = 0;
        for number in 0..64 {
            let (was, is) = (keeper(&before, number), keeper(&after, number));
            assert!(is == was || is == 5);
            if is == 5 {
                taken += 1;
                assert_eq!(asked(&after, place(5, 1), block(number))[0], (was, false));
            }
        }
        assert!((4..=24).contains(&taken), "{taken} of 64");
    }
}
