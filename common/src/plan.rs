//! Members of a generation, and their duties per fragment.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::id::{FragmentId, Generation, SiteId, WorkerId};

/// Division of a sync group's parameters into fragments: equal slices, the last one shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentLayout {
    /// Parameters in the sync group.
    pub values: u64,
    /// Parameters in a fragment.
    pub fragment_values: u32,
}

impl FragmentLayout {
    /// Returns the number of fragments.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.values.div_ceil(u64::from(self.fragment_values))).unwrap_or(u32::MAX)
    }

    /// Returns all fragments in order.
    pub fn fragments(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.count()).map(FragmentId)
    }

    /// Returns the parameters of a fragment, as indices into the flat parameter vector.
    #[must_use]
    pub fn range(&self, fragment: FragmentId) -> Range<usize> {
        let size = u64::from(self.fragment_values);
        let start = (u64::from(fragment.0) * size).min(self.values);
        start as usize..(start + size).min(self.values) as usize
    }

    /// Returns the fragments that overlap these values.
    pub fn touched_by(&self, values: &Range<usize>) -> impl Iterator<Item = FragmentId> + use<> {
        let size = self.fragment_values as usize;
        let end = if values.is_empty() { 0 } else { values.end.div_ceil(size) };
        (values.start / size..end).map(|fragment| FragmentId(fragment as u32))
    }
}

/// A member of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Worker.
    pub worker: WorkerId,
    /// Site.
    pub site: SiteId,
    /// Address for members of its own site.
    pub lan_address: SocketAddr,
    /// Address for members of other sites.
    pub wan_address: SocketAddr,
    /// Relative upload bandwidth, which determines its share of the ownership.
    pub upload_weight: u32,
}

/// The members of one generation and their duties, equal at all members. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Generation.
    pub generation: Generation,
    /// Sorted by worker.
    members: Arc<[Member]>,
    /// By fragment: the worker that reduces it and publishes the result.
    owners: Arc<[WorkerId]>,
    /// By site (in the order of [`Self::sites`]) and fragment: the worker that sends the site's contribution.
    uploaders: Arc<[(SiteId, Vec<WorkerId>)]>,
    /// Follows from the members.
    #[serde(skip)]
    by_site: BySite,
}

/// The places of a site's members among all. Clones share it, and the first use computes it: one use costs each member
/// of a large run as much as all its other work in a generation.
#[derive(Clone, Debug, Default)]
struct BySite(Arc<OnceLock<BTreeMap<SiteId, Vec<usize>>>>);

impl PartialEq for BySite {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BySite {}

impl BySite {
    fn of(&self, site: SiteId, members: &[Member]) -> &[usize] {
        let all = self.0.get_or_init(|| {
            let mut all: BTreeMap<SiteId, Vec<usize>> = BTreeMap::new();
            for (at, member) in members.iter().enumerate() {
                all.entry(member.site).or_default().push(at);
            }
            all
        });
        all.get(&site).map_or(&[], Vec::as_slice)
    }
}

impl Membership {
    /// Assigns the duties by rendezvous hashing weighted by upload bandwidth (Thaler & Ravishankar 1998;
    /// weights after Schindelhauer & Schomaker 2005): a departing member's duties move, and few others.
    ///
    /// Loads are bounded (Mirrokni, Thorup & Zadimoghaddam 2018): of the fragments of a turn (those equal modulo
    /// `turns`, which a round exchanges together) no site owns more than its share, rounded up, and no member more
    /// of its site's, since a round ends with its busiest owner. A site has the bandwidth of its best member: all
    /// share its link. The fewer fragments a turn has, the more duties move with a departure or with `turns`.
    #[must_use]
    pub fn assign(
        generation: Generation,
        mut members: Vec<Member>,
        layout: FragmentLayout,
        turns: u32,
    ) -> Self {
        members.sort_by_key(|member| member.worker);
        members.dedup_by_key(|member| member.worker);
        let mut sites: Vec<SiteId> = members.iter().map(|member| member.site).collect();
        sites.sort_unstable();
        sites.dedup();
        let of_site = |site: SiteId| -> Vec<Candidate> {
            members.iter().filter(|member| member.site == site).map(Candidate::of).collect()
        };
        let by_turn: Vec<Vec<u32>> = by_turn(layout.count(), turns.max(1));
        let all: Vec<Vec<Candidate>> = sites.iter().map(|&site| of_site(site)).collect();
        let owners = owners(&by_turn, &sites, &all, layout.count());
        let uploaders = sites.iter().zip(&all).map(|(&site, members)| {
            let mut uploaders = vec![WorkerId(0); layout.count() as usize];
            for fragments in &by_turn {
                share_out(b'u', fragments, members, |fragment, id| {
                    uploaders[fragment as usize] = WorkerId(id);
                });
            }
            (site, uploaders)
        });
        let uploaders = uploaders.collect();
        let by_site = BySite::default();
        Self { generation, members: members.into(), owners: owners.into(), uploaders, by_site }
    }

    /// Returns the members, sorted by worker.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns a member by its worker id.
    #[must_use]
    pub fn member(&self, worker: WorkerId) -> Option<&Member> {
        self.members.binary_search_by_key(&worker, |member| member.worker).ok().map(|at| &self.members[at])
    }

    /// Returns the rank of a member in the order of members.
    #[must_use]
    pub fn rank(&self, worker: WorkerId) -> Option<usize> {
        self.members.binary_search_by_key(&worker, |member| member.worker).ok()
    }

    /// Returns the sites with members, in order.
    pub fn sites(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.uploaders.iter().map(|(site, _)| *site)
    }

    /// Returns the members of a site, sorted by worker.
    pub fn members_of(&self, site: SiteId) -> impl Iterator<Item = &Member> + '_ {
        self.by_site.of(site, &self.members).iter().map(|at| &self.members[*at])
    }

    /// Returns the worker that reduces a fragment and publishes its result; `None`: no such fragment, or no
    /// member.
    #[must_use]
    pub fn owner(&self, fragment: FragmentId) -> Option<WorkerId> {
        self.owners.get(fragment.0 as usize).copied()
    }

    /// Returns the worker that sends a site's contribution to a fragment and forwards the result within the
    /// site.
    #[must_use]
    pub fn uploader(&self, site: SiteId, fragment: FragmentId) -> Option<WorkerId> {
        let (_, uploaders) = &self.uploaders[self.place_of(site)?];
        uploaders.get(fragment.0 as usize).copied()
    }

    /// Reports whether a site has members.
    #[must_use]
    pub fn has_site(&self, site: SiteId) -> bool {
        self.place_of(site).is_some()
    }

    /// Sites are in order, but for those of a coordinator that is not ours.
    fn place_of(&self, site: SiteId) -> Option<usize> {
        let sorted = self.uploaders.binary_search_by_key(&site, |(site, _)| *site).ok();
        sorted.or_else(|| self.uploaders.iter().position(|(there, _)| *there == site))
    }
}

/// A site or a member that may have duties.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    weight: u32,
}

impl Candidate {
    fn of(member: &Member) -> Self {
        Self { id: member.worker.0, weight: member.upload_weight.max(1) }
    }
}

/// Returns the fragments of each turn.
fn by_turn(fragments: u32, turns: u32) -> Vec<Vec<u32>> {
    (0..turns.min(fragments)).map(|turn| (turn..fragments).step_by(turns as usize).collect()).collect()
}

/// Returns the owner of each fragment: a site first, and then one of its members.
fn owners(
    by_turn: &[Vec<u32>],
    sites: &[SiteId],
    members: &[Vec<Candidate>],
    fragments: u32,
) -> Vec<WorkerId> {
    let best = |members: &[Candidate]| members.iter().map(|member| member.weight).max().unwrap_or(1);
    let of_site =
        |(site, members): (&SiteId, &Vec<Candidate>)| Candidate { id: site.0, weight: best(members) };
    let candidates: Vec<Candidate> = sites.iter().zip(members).map(of_site).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut owners = vec![WorkerId(0); fragments as usize];
    for due in by_turn {
        let mut of_site: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        share_out(b'd', due, &candidates, |fragment, site| of_site.entry(site).or_default().push(fragment));
        for (site, members) in sites.iter().zip(members) {
            let due = of_site.get(&site.0).map_or(&[][..], Vec::as_slice);
            share_out(b'o', due, members, |fragment, id| owners[fragment as usize] = WorkerId(id));
        }
    }
    owners
}

/// Gives each of these fragments to the candidate with the largest score of those that have less than their share.
fn share_out(purpose: u8, due: &[u32], among: &[Candidate], mut give: impl FnMut(u32, u32)) {
    let all: u64 = among.iter().map(|candidate| u64::from(candidate.weight)).sum();
    let is_equal = among.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    let share = |of: &Candidate| (due.len() as u64 * u64::from(of.weight)).div_ceil(all.max(1));
    let mut free: Vec<(Candidate, u64)> = among.iter().map(|of| (*of, share(of))).collect();
    for &fragment in due {
        let Some(at) = rendezvous(purpose, fragment, &free, is_equal) else { continue };
        give(fragment, free[at].0.id);
        free[at].1 -= 1;
        if free[at].1 == 0 {
            free.swap_remove(at);
        }
    }
}

/// Returns the place of the candidate with the largest score −weight / ln(u), u uniform in (0, 1) by hash. Only the
/// coordinator computes it, so the logarithm need not be equal on all machines to the last bit.
fn rendezvous(purpose: u8, fragment: u32, among: &[(Candidate, u64)], is_equal: bool) -> Option<usize> {
    let of_fragment = mixed(u64::from(purpose) << 32 | u64::from(fragment));
    let words = among.iter().map(|(of, _)| mixed(of_fragment ^ u64::from(of.id))).enumerate();
    if is_equal {
        // Among equal weights, the largest u has the largest score.
        return words.max_by_key(|(_, word)| *word).map(|(at, _)| at);
    }
    let scored = words.zip(among).map(|((at, word), (of, _))| {
        // 52 bits and a half: never 0 or 1, where the logarithm has no use.
        let uniform = ((word >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
        (at, -f64::from(of.weight) / uniform.ln())
    });
    scored.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
}

/// Diffuses every bit (the finaliser of SplitMix64: Steele, Lea & Flood 2014, "Fast splittable pseudorandom
/// number generators"). Ten thousand members and thousands of fragments take tens of millions of calls.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(worker: u32, site: u32, upload_weight: u32) -> Member {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let worker = WorkerId(worker);
        Member { worker, site: SiteId(site), lan_address: address, wan_address: address, upload_weight }
    }

    const LAYOUT: FragmentLayout = FragmentLayout { values: 4_000_000, fragment_values: 1000 };

    #[test]
    fn fragments_tile_the_parameters() {
        let layout = FragmentLayout { values: 1001, fragment_values: 500 };
        let ranges: Vec<_> = layout.fragments().map(|f| layout.range(f)).collect();
        assert_eq!(ranges, [0..500, 500..1000, 1000..1001]);
        assert!(layout.range(FragmentId(9)).is_empty());
    }

    /// A site has the weight of its best member: 300 and 600.
    #[test]
    fn ownership_follows_the_upload_weights() {
        let members = vec![member(1, 0, 100), member(2, 0, 300), member(3, 1, 600)];
        let plan = Membership::assign(Generation(1), members, LAYOUT, 1);
        let owned = |id| LAYOUT.fragments().filter(|&f| plan.owner(f) == Some(WorkerId(id))).count() as f64;
        for (id, expected) in [(1, 1.0 / 12.0), (2, 0.25), (3, 2.0 / 3.0)] {
            let share = owned(id) / f64::from(LAYOUT.count());
            assert!((share - expected).abs() < 0.001, "w{id} owns {share} of the fragments, not {expected}");
        }
    }

    /// Also with fewer fragments than members or sites, and turns of unequal length.
    #[test]
    fn no_site_and_no_member_has_more_than_its_share_of_a_turn() {
        for (count, turns, workers) in [
            (4000, 7, vec![1; 5]),
            (45, 11, vec![1; 2]),
            (160, 40, vec![4; 2]),
            (30, 8, vec![3, 1]),
            (9, 3, vec![1; 20]),
        ] {
            let sites = || (0..).zip(&workers).flat_map(|(site, &workers)| (0..workers).map(move |_| site));
            let members: Vec<_> = (1..).zip(sites()).map(|(worker, site)| member(worker, site, 1)).collect();
            let layout = FragmentLayout { values: count, fragment_values: 1 };
            let plan = Membership::assign(Generation(1), members.clone(), layout, turns);
            let site_of = |worker| plan.member(worker).map(|member| member.site);
            for turn in 0..turns {
                let due: Vec<_> = layout.fragments().filter(|fragment| fragment.0 % turns == turn).collect();
                let owners: Vec<_> = due.iter().map(|fragment| plan.owner(*fragment).unwrap()).collect();
                for (site, &workers_here) in (0..).map(SiteId).zip(&workers) {
                    let owned = owners.iter().filter(|owner| site_of(**owner) == Some(site)).count();
                    assert!(owned <= due.len().div_ceil(workers.len()), "{owned} of {}", due.len());
                    for member in members.iter().filter(|member| member.site == site) {
                        let own = owners.iter().filter(|owner| **owner == member.worker).count();
                        let uploaded =
                            due.iter().filter(|f| plan.uploader(site, **f) == Some(member.worker)).count();
                        assert!(own <= owned.div_ceil(workers_here), "{own} of {owned}");
                        assert!(uploaded <= due.len().div_ceil(workers_here), "{uploaded} of {}", due.len());
                    }
                }
            }
        }
    }

    /// Turns of four fragments.
    #[test]
    fn with_few_fragments_in_a_turn_most_duties_stay() {
        let all: Vec<_> = (1..=5).map(|worker| member(worker, worker, 10)).collect();
        let layout = FragmentLayout { values: 160, fragment_values: 1 };
        let before = Membership::assign(Generation(1), all.clone(), layout, 40);
        let after = Membership::assign(Generation(2), all[1..].to_vec(), layout, 40);
        let stays = |fragment: &FragmentId| before.owner(*fragment) != Some(WorkerId(1));
        let moved = layout.fragments().filter(stays).filter(|f| before.owner(*f) != after.owner(*f)).count();
        assert!(moved < 40, "{moved} of 160 fragments changed hands");
    }

    #[test]
    fn members_of_a_site_are_in_order_and_a_site_without_members_is_not_there() {
        let members = (1..=7).map(|worker| member(worker, worker % 3 * 2, 10)).collect();
        let plan = Membership::assign(Generation(1), members, LAYOUT, 1);
        let of = |site| plan.members_of(SiteId(site)).map(|member| member.worker.0).collect::<Vec<_>>();
        assert_eq!([of(0), of(2), of(4), of(1)], [vec![3, 6], vec![1, 4, 7], vec![2, 5], vec![]]);
        assert_eq!([0, 1, 2, 4, 9].map(|site| plan.has_site(SiteId(site))), [true, false, true, true, false]);
        assert_eq!(plan.uploader(SiteId(1), FragmentId(0)), None);
    }

    #[test]
    fn few_duties_move_but_those_of_a_departed_member() {
        let all: Vec<_> = (1..=5).map(|w| member(w, w % 2, 10)).collect();
        let before = Membership::assign(Generation(1), all.clone(), LAYOUT, 1);
        let rest = all.into_iter().filter(|m| m.worker != WorkerId(3)).collect();
        let after = Membership::assign(Generation(2), rest, LAYOUT, 1);
        let stays = |fragment: &FragmentId| before.owner(*fragment) != Some(WorkerId(3));
        let moved = LAYOUT.fragments().filter(stays).filter(|f| before.owner(*f) != after.owner(*f)).count();
        // Bounds move fewer than two standard deviations of a binomial share of 4000.
        assert!(moved < 50, "{moved} of {} fragments changed hands", LAYOUT.count());
        for fragment in LAYOUT.fragments() {
            let uploader = after.uploader(SiteId(1), fragment).and_then(|w| after.member(w));
            assert_eq!(uploader.map(|m| m.site), Some(SiteId(1)));
        }
    }
}
