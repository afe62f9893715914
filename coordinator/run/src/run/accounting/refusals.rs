//! Contributions that owners refused: their count, and the notices about them.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::{Round, SiteId, WorkerId};
use longhaul_proto::control::message::{REFUSALS_REPORTED_MAX, Refusal, RefusalReason, RoundReport};
use serde::{Deserialize, Serialize};

use crate::run::accounting::Accounting;
use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::views::status::RefusalStatus;

/// A site that is refused is refused in every fragment of every round. People hear of it once in this time, and how often it was since.
const NOTICE_INTERVAL: Duration = Duration::from_secs(600);

/// Why a contribution was refused, without figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its bytes are no update.
    Undecodable,
    /// It is of another length.
    WrongLength,
    /// It holds numbers that are not finite.
    NotFinite,
    /// Its norm is too large.
    Norm,
}

impl Cause {
    /// As metrics and status name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::WrongLength => "wrong-length",
            Self::NotFinite => "not-finite",
            Self::Norm => "norm",
        }
    }
}

impl From<RefusalReason> for Cause {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::Undecodable => Self::Undecodable,
            RefusalReason::WrongLength => Self::WrongLength,
            RefusalReason::NotFinite => Self::NotFinite,
            RefusalReason::Norm { .. } => Self::Norm,
        }
    }
}

/// The refusals of one site for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// How many contributions.
    pub count: u64,
    /// The round of the newest.
    pub round: Round,
    /// Owner that refused the newest.
    pub by: WorkerId,
    /// Time of the last notice.
    told_at: Duration,
    /// Count at the last notice.
    told: u64,
}

/// All refusals since the coordinator was started: as many entries as sites times causes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refusals {
    by_site: BTreeMap<(SiteId, Cause), Refused>,
    /// Refusals that no report had room to name.
    unnamed: u64,
    /// By worker: the round of its newest report that was counted. Reports are repeated after a lost connection.
    counted: BTreeMap<WorkerId, Round>,
}

impl Refusals {
    /// Whether the report of this round is a worker's first.
    pub fn is_new(&mut self, worker: WorkerId, round: Round) -> bool {
        let is_new = self.counted.get(&worker).is_none_or(|counted| *counted < round);
        if is_new {
            self.counted.insert(worker, round);
        }
        is_new
    }

    /// Counts a refusal. `Some`: a notice is due, with the number of unreported refusals of its kind.
    pub fn note(&mut self, now: Duration, by: WorkerId, refusal: &Refusal) -> Option<u64> {
        let round = refusal.round;
        let new = Refused { count: 0, round, by, told_at: now, told: 0 };
        let refused = self.by_site.entry((refusal.site, refusal.reason.into())).or_insert(new);
        refused.count += 1;
        (refused.round, refused.by) = (round, by);
        if refused.told > 0 && now.saturating_sub(refused.told_at) < NOTICE_INTERVAL {
            return None;
        }
        let untold = refused.count - refused.told - 1;
        (refused.told_at, refused.told) = (now, refused.count);
        Some(untold)
    }

    /// Counts refusals that a report had no room for.
    pub fn note_unnamed(&mut self, count: u32) {
        self.unnamed = self.unnamed.saturating_add(u64::from(count));
    }

    /// By site and cause.
    pub fn iter(&self) -> impl Iterator<Item = (SiteId, Cause, Refused)> + '_ {
        self.by_site.iter().map(|(&(site, cause), &refused)| (site, cause, refused))
    }

    /// How many were in no report by name.
    #[must_use]
    pub fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// The run goes back to the state before `round`: later ones are reported anew.
    pub fn cut_back(&mut self, round: Round) {
        self.counted.retain(|_, counted| *counted < round);
    }
}

impl Accounting {
    /// Counts a report's refusals and issues notices.
    pub(crate) fn note_refusals(&mut self, core: &mut Core, worker: WorkerId, report: &RoundReport) {
        self.refusals.note_unnamed(report.refused_beyond);
        for refusal in report.refused.iter().take(REFUSALS_REPORTED_MAX) {
            let Some(site) = core.state.roster.sites.get(refusal.site.0 as usize).cloned() else { continue };
            if let Some(untold) = self.refusals.note(core.now, worker, refusal) {
                core.notice(Severity::Warning, None, sentence(&site, worker, refusal, untold));
            }
        }
    }

    pub(crate) fn refusal_statuses(&self, core: &Core) -> Vec<RefusalStatus> {
        let status = |(site, cause, refused): (SiteId, Cause, Refused)| RefusalStatus {
            site: core.state.roster.sites.get(site.0 as usize).cloned().unwrap_or_default(),
            reason: cause,
            count: refused.count,
            round: refused.round.0,
            by: refused.by.to_string(),
        };
        self.refusals.iter().map(status).collect()
    }
}

/// Text of a notice: "site a's update of f3 for r12 was refused by w3: its norm is 83 times the median of the last 32".
fn sentence(site: &str, by: WorkerId, refusal: &Refusal, untold: u64) -> String {
    let Refusal { round, fragment, reason, .. } = refusal;
    let why = match reason {
        RefusalReason::Undecodable => "it does not decode".to_owned(),
        RefusalReason::WrongLength => "it is of another length".to_owned(),
        RefusalReason::NotFinite => {
            "it holds numbers that are not finite, or too large to be summed".to_owned()
        }
        RefusalReason::Norm { times, of } => {
            format!("its norm is {times:.0} times the median of the last {of}")
        }
    };
    let more = if untold > 0 { format!(" ({untold} more since the last time)") } else { String::new() };
    format!("site {site}'s update of {fragment} for {round} was refused by {by}: {why}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::id::FragmentId;

    fn refusal(site: u32, reason: RefusalReason) -> Refusal {
        Refusal { site: SiteId(site), round: Round(12), fragment: FragmentId(3), reason }
    }

    #[test]
    fn people_are_told_once_of_a_site_and_cause_in_a_while() {
        let mut refusals = Refusals::default();
        let norm = refusal(1, RefusalReason::Norm { times: 83.2, of: 32 });
        assert_eq!(refusals.note(Duration::ZERO, WorkerId(3), &norm), Some(0));
        for second in 1..600 {
            assert_eq!(refusals.note(Duration::from_secs(second), WorkerId(3), &norm), None);
        }
        for other in [refusal(2, norm.reason), refusal(1, RefusalReason::NotFinite)] {
            assert_eq!(refusals.note(Duration::from_secs(599), WorkerId(3), &other), Some(0));
        }
        assert_eq!(refusals.note(Duration::from_secs(600), WorkerId(4), &norm), Some(599));
        assert_eq!(refusals.note(Duration::from_secs(601), WorkerId(4), &norm), None);
        let (site, cause, refused) = refusals.iter().next().unwrap();
        assert_eq!((site, cause), (SiteId(1), Cause::NotFinite));
        assert_eq!(refused.count, 1);
        let (_, _, refused) = refusals.iter().nth(1).unwrap();
        assert_eq!((refused.count, refused.by), (602, WorkerId(4)));
    }

    #[test]
    fn the_sentence_says_whose_by_whom_and_why() {
        let norm = refusal(1, RefusalReason::Norm { times: 83.2, of: 32 });
        assert_eq!(
            sentence("amsterdam", WorkerId(3), &norm, 0),
            "site amsterdam's update of f3 for r12 was refused by w3: its norm is 83 times the median of the last 32"
        );
        let damaged = sentence("amsterdam", WorkerId(3), &refusal(1, RefusalReason::Undecodable), 7);
        assert!(damaged.ends_with("it does not decode (7 more since the last time)"), "{damaged}");
    }

    #[test]
    fn a_repeated_report_counts_once_unless_the_run_went_back() {
        let mut refusals = Refusals::default();
        assert!(refusals.is_new(WorkerId(1), Round(4)) && refusals.is_new(WorkerId(2), Round(4)));
        assert!(!refusals.is_new(WorkerId(1), Round(4)) && !refusals.is_new(WorkerId(1), Round(3)));
        refusals.cut_back(Round(3));
        assert!(refusals.is_new(WorkerId(1), Round(3)));
    }
}
