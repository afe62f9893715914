//! How fast the ways between sites are, as far as is known: from measurements before there was a plan, and from the run's own traffic since.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{LINKS_MAX, LINKS_REPEATED_S, MeasuredLink, SeenLink};
use serde::{Deserialize, Serialize};

use crate::run::core::Core;
use crate::run::planning::decide::slower;
use crate::run::views::status::LinkStatus;
use longhaul_plan::Link;

/// Ways that are kept, each in one direction: those of 64 sites with each other. Of more, those that are known first.
const WAYS_KEPT: usize = 4096;
/// Ways that the status shows.
const WAYS_SHOWN: usize = 64;
/// Several workers of a site report the same link, each with the rate of its own connection. The fastest report counts for this time.
const SIDE_BY_SIDE: Duration = Duration::from_secs(2 * LINKS_REPEATED_S);

/// One way in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownWay {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// There and back, in seconds, without queues.
    pub round_trip_s: f64,
    /// Time of the report, on the run's clock; `None`: an earlier coordinator received it, or it was measured before a plan existed.
    #[serde(skip)]
    pub at: Option<Duration>,
}

/// All of them, by the sites from which and to which they lead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ways {
    known: BTreeMap<(SiteId, SiteId), KnownWay>,
}

impl Ways {
    /// Records a measurement from before the plan.
    pub fn measured(&mut self, from: SiteId, to: SiteId, link: Link) {
        self.put(
            (from, to),
            KnownWay { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s, at: None },
        );
    }

    /// Records the rates that a worker at `from` derived from its frames. Links within its own site are ignored.
    pub fn seen(&mut self, now: Duration, from: SiteId, ways: &[SeenLink]) {
        for SeenLink { to, link } in
            ways.iter().take(LINKS_MAX).filter(|way| way.to != from && is_sound(&way.link))
        {
            let mut way =
                KnownWay { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s, at: Some(now) };
            let before = self.known.get(&(from, *to));
            // The same way, side by side with another connection.
            if let Some(before) = before.filter(|way| way.at.is_some_and(|at| at + SIDE_BY_SIDE > now))
                && before.bytes_per_s > way.bytes_per_s
            {
                // An old rate halves in the time of one repetition, so that a slower link is soon recognised.
                way.bytes_per_s = way.bytes_per_s.max(before.bytes_per_s * fading(now, before.at));
                way.round_trip_s = way.round_trip_s.min(before.round_trip_s);
            }
            self.put((from, *to), way);
        }
    }

    /// The way between two sites, whichever direction is slower.
    #[must_use]
    pub fn between(&self, a: SiteId, b: SiteId) -> Option<Link> {
        let link = |way: &KnownWay| Link { bytes_per_s: way.bytes_per_s, round_trip_s: way.round_trip_s };
        let of = |from, to| self.known.get(&(from, to)).map(link);
        [of(a, b), of(b, a)].into_iter().flatten().reduce(slower)
    }

    /// Distance between sites: the round trip in seconds, zero within a site, infinite where unknown.
    #[must_use]
    pub fn far(&self, a: SiteId, b: SiteId) -> f64 {
        if a == b { 0.0 } else { self.between(a, b).map_or(f64::INFINITY, |link| link.round_trip_s) }
    }

    fn put(&mut self, pair: (SiteId, SiteId), way: KnownWay) {
        if self.known.len() < WAYS_KEPT || self.known.contains_key(&pair) {
            self.known.insert(pair, way);
        }
    }
}

/// Remaining part of a rate seen at `at`: half of it after [`LINKS_REPEATED_S`].
fn fading(now: Duration, at: Option<Duration>) -> f64 {
    let age_s = at.map_or(0.0, |at| now.saturating_sub(at).as_secs_f64());
    (-age_s / LINKS_REPEATED_S as f64).exp2()
}

/// Whether there may be such a way.
pub(super) fn is_sound(link: &MeasuredLink) -> bool {
    link.bytes_per_s.is_finite()
        && link.bytes_per_s >= 1.0
        && link.round_trip_s.is_finite()
        && link.round_trip_s >= 0.0
}

impl Core {
    /// The known links between sites, for display.
    pub(super) fn link_statuses(&self) -> Vec<LinkStatus> {
        let name = |site: SiteId| self.state.roster.sites.get(site.0 as usize).cloned().unwrap_or_default();
        let between_sites = self.state.ways.known.iter().filter(|((from, to), _)| from != to);
        let status = |(&(from, to), way): (&(SiteId, SiteId), &KnownWay)| LinkStatus {
            from: name(from),
            to: name(to),
            bytes_per_s: way.bytes_per_s,
            round_trip_s: way.round_trip_s,
            seen_s: way.at.map(|at| self.now.saturating_sub(at).as_secs_f64()),
        };
        between_sites.map(status).take(WAYS_SHOWN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SiteId = SiteId(0);
    const B: SiteId = SiteId(1);

    fn seen(ways: &mut Ways, at_s: u64, from: SiteId, to: SiteId, mbit: f64) {
        let link = MeasuredLink { bytes_per_s: mbit * 125e3, round_trip_s: 0.05 };
        ways.seen(Duration::from_secs(at_s), from, &[SeenLink { to, link }]);
    }

    fn mbit(ways: &Ways) -> f64 {
        ways.between(A, B).unwrap().bytes_per_s / 125e3
    }

    #[test]
    fn the_slower_direction_counts_and_what_traffic_shows_takes_the_place_of_what_was_measured() {
        let mut ways = Ways::default();
        assert_eq!(ways.between(A, B), None);
        ways.measured(A, B, Link { bytes_per_s: 100.0 * 125e3, round_trip_s: 0.1 });
        ways.measured(B, A, Link { bytes_per_s: 80.0 * 125e3, round_trip_s: 0.05 });
        assert_eq!((mbit(&ways), ways.between(B, A).unwrap().round_trip_s), (80.0, 0.1));
        seen(&mut ways, 10, B, A, 30.0);
        assert_eq!(mbit(&ways), 30.0);
        seen(&mut ways, 10, A, B, 20.0);
        assert_eq!(mbit(&ways), 20.0);
    }

    #[test]
    fn of_workers_side_by_side_the_fastest_counts_until_it_has_said_nothing_for_a_while() {
        let mut ways = Ways::default();
        seen(&mut ways, 0, A, B, 100.0);
        seen(&mut ways, 0, A, B, 40.0);
        assert_eq!(mbit(&ways), 100.0);
        // A minute later it is half of that, and another minute later the newer report.
        seen(&mut ways, 60, A, B, 10.0);
        assert_eq!(mbit(&ways), 50.0);
        seen(&mut ways, 240, A, B, 10.0);
        assert_eq!(mbit(&ways), 10.0);
    }

    #[test]
    fn what_cannot_be_is_not_believed_and_what_is_kept_is_bounded() {
        let mut ways = Ways::default();
        seen(&mut ways, 0, A, B, f64::NAN);
        seen(&mut ways, 0, A, B, -1.0);
        seen(&mut ways, 0, A, A, 1.0);
        assert_eq!((ways.between(A, B), ways.between(A, A)), (None, None));
        for to in 0..2 * WAYS_KEPT as u32 {
            seen(&mut ways, 0, A, SiteId(to), 1.0);
        }
        assert_eq!(ways.known.len(), WAYS_KEPT);
        seen(&mut ways, 0, A, B, 2.0);
        assert_eq!(mbit(&ways), 2.0, "what is kept is still followed");
    }
}
