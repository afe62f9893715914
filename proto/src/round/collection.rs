//! An owner's work on one fragment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Round, SiteId};

use super::command::Contribution;

/// What has arrived for the one round of a fragment that is open here: contributors send nothing for a round before
/// they have the result of the one before it.
#[derive(Debug)]
pub(super) struct Collection {
    pub round: Round,
    /// One slot for each site.
    contributions: BTreeMap<SiteId, Contribution>,
    /// When the first and the last with something in them came.
    arrivals: Option<(Duration, Duration)>,
    /// Whether it was closed and the caller has yet to take the mean.
    pub reducing: bool,
}

impl Collection {
    pub fn new(round: Round) -> Self {
        Self { round, contributions: BTreeMap::new(), arrivals: None, reducing: false }
    }

    /// False: this site has delivered already. The caller sees to it that the round is open.
    pub fn take(&mut self, now: Duration, contribution: Contribution) -> bool {
        if self.contributions.contains_key(&contribution.site) {
            return false;
        }
        if contribution.weight > 0 {
            self.arrivals = Some((self.arrivals.map_or(now, |(first, _)| first), now));
        }
        self.contributions.insert(contribution.site, contribution);
        true
    }

    /// The first arrival. Who has nothing does not make the others hurry.
    pub fn first_arrival(&self) -> Option<Duration> {
        self.arrivals.map(|(first, _)| first)
    }

    /// Between the first and the last arrival.
    pub fn spread(&self) -> Duration {
        self.arrivals.map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
    }

    pub fn is_full(&self, sites: &BTreeSet<SiteId>) -> bool {
        self.lacks(sites).next().is_none()
    }

    /// Those of these sites that have not delivered.
    pub fn lacks<'a>(&'a self, sites: &'a BTreeSet<SiteId>) -> impl Iterator<Item = SiteId> + 'a {
        sites.iter().copied().filter(|site| !self.contributions.contains_key(site))
    }

    /// How many contributions are in memory.
    pub fn held(&self) -> usize {
        self.contributions.len()
    }

    /// The contributions with something in them, in site order.
    pub fn contributions(&self) -> Vec<Contribution> {
        self.contributions.values().filter(|contribution| contribution.weight > 0).cloned().collect()
    }
}
