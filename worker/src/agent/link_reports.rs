//! Selection of link measurements to report.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{LINKS_MAX, LINKS_REPEATED_S, MeasuredLink, SeenLink};

/// Interval between reports: estimates hold for some round trips, plans for minutes.
pub(super) const LOOK: Duration = Duration::from_secs(10);
/// Relative change below which a link counts as unchanged: estimates of one path scatter by a few hundredths.
const CHANGE: f64 = 0.1;

/// The last reported measurement of each link, and its time.
#[derive(Debug, Default)]
pub(super) struct ToldLinks {
    told: BTreeMap<SiteId, (Duration, MeasuredLink)>,
}

impl ToldLinks {
    /// Selects measurements to report now: changed ones first, then the longest unreported, at most [`LINKS_MAX`].
    pub fn news(&mut self, now: Duration, ways: &BTreeMap<SiteId, MeasuredLink>) -> Vec<SeenLink> {
        self.told.retain(|site, _| ways.contains_key(site));
        let mut news: Vec<(Option<Duration>, SeenLink)> = Vec::new();
        for (&to, &link) in ways {
            let seen = SeenLink { to, link };
            match self.told.get(&to) {
                Some((_, before)) if differs(before, &link) => news.push((None, seen)),
                Some((at, _)) if *at + Duration::from_secs(LINKS_REPEATED_S) <= now => {
                    news.push((Some(*at), seen))
                }
                Some(_) => {}
                None => news.push((None, seen)),
            }
        }
        news.sort_by_key(|(at, _)| *at);
        news.truncate(LINKS_MAX);
        self.told.extend(news.iter().map(|(_, seen)| (seen.to, (now, seen.link))));
        news.into_iter().map(|(_, seen)| seen).collect()
    }

    /// Reports everything again after a reconnection.
    pub fn repeat(&mut self) {
        self.told.clear();
    }
}

fn differs(before: &MeasuredLink, now: &MeasuredLink) -> bool {
    let by = |one: f64, other: f64| (one - other).abs() > CHANGE * one.abs().max(other.abs());
    by(before.bytes_per_s, now.bytes_per_s) || by(before.round_trip_s, now.round_trip_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(rates: &[f64]) -> BTreeMap<SiteId, MeasuredLink> {
        let link = |&bytes_per_s: &f64| MeasuredLink { bytes_per_s, round_trip_s: 0.05 };
        (0..).map(SiteId).zip(rates.iter().map(link)).collect()
    }

    fn told(told: &mut ToldLinks, seconds: u64, rates: &[f64]) -> Vec<u32> {
        told.news(Duration::from_secs(seconds), &ways(rates)).iter().map(|seen| seen.to.0).collect()
    }

    #[test]
    fn what_is_new_or_has_changed_is_told_at_once_and_all_else_once_a_minute() {
        let mut ways = ToldLinks::default();
        assert_eq!(told(&mut ways, 0, &[100.0, 200.0]), [0, 1]);
        assert!(told(&mut ways, 10, &[105.0, 200.0]).is_empty());
        assert_eq!(told(&mut ways, 20, &[120.0, 200.0]), [0]);
        assert_eq!(told(&mut ways, 60, &[120.0, 200.0]), [1]);
        assert_eq!(told(&mut ways, 80, &[120.0, 200.0, 1.0]), [2, 0]);
        ways.repeat();
        assert_eq!(told(&mut ways, 81, &[120.0]), [0]);
    }

    #[test]
    fn of_more_sites_than_a_message_has_room_for_each_has_its_turn() {
        let mut ways = ToldLinks::default();
        let rates = vec![1.0; 2 * LINKS_MAX + 1];
        let turns: Vec<Vec<u32>> = (0..4).map(|look| told(&mut ways, 10 * look, &rates)).collect();
        assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [LINKS_MAX, LINKS_MAX, 1, 0]);
        let mut all = turns.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..2 * LINKS_MAX as u32 + 1));
    }
}
