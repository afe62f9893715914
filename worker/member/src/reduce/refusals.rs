//! This owner's refusals until the next report to the coordinator, and their log entries.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use longhaul_common::id::SiteId;
use longhaul_proto::control::message::{REFUSALS_REPORTED_MAX, Refusal, RefusalReason, RoundReport};

/// A refused site is refused in every fragment of every round: the log has one entry per interval, with the number of refusals since.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Refusals for the next report, and the times of the last log entries by site.
#[derive(Debug, Default)]
pub struct Refusals {
    /// At most [`REFUSALS_REPORTED_MAX`].
    waiting: Vec<Refusal>,
    beyond: u32,
    /// By site (bounded by the run's sites): time of the last log entry, and number of unlogged refusals.
    logged: BTreeMap<SiteId, (Duration, u64)>,
}

impl Refusals {
    /// Notes a refusal, and logs it if due.
    pub fn note(&mut self, now: Duration, refusal: Refusal) {
        if self.waiting.len() < REFUSALS_REPORTED_MAX {
            self.waiting.push(refusal);
        } else {
            self.beyond = self.beyond.saturating_add(1);
        }
        let Some(untold) = self.log_due(now, refusal.site) else { return };
        let Refusal { site, round, fragment, reason } = refusal;
        tracing::warn!(%site, %round, %fragment, untold, "a contribution was refused: {}", explain(reason));
    }

    /// Moves the refusals into a report, as far as there is room.
    pub fn hand_over(&mut self, report: &mut RoundReport) {
        report.refused = mem::take(&mut self.waiting);
        report.refused_beyond = mem::take(&mut self.beyond);
    }

    /// Reports whether a site's refusal is due for the log; if so, the number of unlogged ones since the last entry.
    fn log_due(&mut self, now: Duration, site: SiteId) -> Option<u64> {
        let last = self.logged.get_mut(&site);
        if let Some((_, untold)) = last.filter(|(at, _)| now.saturating_sub(*at) < LOG_INTERVAL) {
            *untold += 1;
            return None;
        }
        Some(self.logged.insert(site, (now, 0)).map_or(0, |(_, untold)| untold))
    }
}

fn explain(reason: RefusalReason) -> String {
    match reason {
        RefusalReason::Undecodable => "it does not decode".to_owned(),
        RefusalReason::WrongLength => "it is of another length".to_owned(),
        RefusalReason::NotFinite => "it is not finite, or as good as not".to_owned(),
        RefusalReason::Norm { times, of } => {
            format!("its norm is {times:.0} times the median of the last {of}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::id::{FragmentId, Round};

    fn refusal(site: u32, fragment: u32) -> Refusal {
        let reason = RefusalReason::Undecodable;
        Refusal { site: SiteId(site), round: Round(3), fragment: FragmentId(fragment), reason }
    }

    #[test]
    fn a_report_names_the_first_ones_and_counts_the_rest() {
        let mut refusals = Refusals::default();
        (0..100).for_each(|fragment| refusals.note(Duration::ZERO, refusal(1, fragment)));
        let mut report = crate::rounds::empty_report(Round(3));
        refusals.hand_over(&mut report);
        assert_eq!(report.refused.len(), REFUSALS_REPORTED_MAX);
        assert_eq!(report.refused.len() as u32 + report.refused_beyond, 100);
        assert_eq!(report.refused[2], refusal(1, 2));
        refusals.hand_over(&mut report);
        assert_eq!(
            (report.refused.as_slice(), report.refused_beyond),
            ([].as_slice(), 0),
            "each is reported once"
        );
    }

    #[test]
    fn the_log_has_a_site_once_in_a_while_with_the_number_between() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.log_due(Duration::ZERO, SiteId(1)), Some(0));
        for second in 0..59 {
            assert_eq!(refusals.log_due(Duration::from_secs(second), SiteId(1)), None);
        }
        assert_eq!(refusals.log_due(Duration::from_secs(59), SiteId(2)), Some(0));
        assert_eq!(refusals.log_due(Duration::from_secs(60), SiteId(1)), Some(59));
        assert_eq!(refusals.log_due(Duration::from_secs(61), SiteId(1)), None);
    }
}
