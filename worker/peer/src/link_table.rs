//! Properties of the paths to other sites, measured from this worker's own frames.

use std::collections::BTreeMap;

use longhaul_common::id::SiteId;
use longhaul_proto::control::message::MeasuredLink;

use super::Network;

impl Network {
    /// Returns, by site with a connection that was full at least once, the highest rate and the shortest round trip of this worker's connections.
    #[must_use]
    pub fn ways(&self) -> BTreeMap<SiteId, MeasuredLink> {
        let peers: Vec<_> =
            self.lock().peers.values().filter(|peer| peer.site != self.own.site).cloned().collect();
        let mut ways: BTreeMap<SiteId, MeasuredLink> = BTreeMap::new();
        for (site, link) in peers.iter().filter_map(|peer| Some((peer.site, peer.way()?))) {
            ways.entry(site).and_modify(|known| *known = faster(*known, link)).or_insert(link);
        }
        ways
    }
}

fn faster(one: MeasuredLink, other: MeasuredLink) -> MeasuredLink {
    MeasuredLink {
        bytes_per_s: one.bytes_per_s.max(other.bytes_per_s),
        round_trip_s: one.round_trip_s.min(other.round_trip_s),
    }
}
