//! Collection of one fragment's contributions by its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{Round, SiteId};

use super::command::Contribution;

/// Contributions to the fragment's open round. One round suffices: contributors send nothing for a round
/// before they have the result of the previous one.
#[derive(Debug)]
pub(super) struct Collection {
    pub round: Round,
    /// One slot per site.
    contributions: BTreeMap<SiteId, Contribution>,
    /// Times of the first and last non-empty contribution.
    arrivals: Option<(Duration, Duration)>,
    /// Whether it is closed and the caller has yet to compute the mean.
    pub reducing: bool,
}

impl Collection {
    pub fn new(round: Round) -> Self {
        Self { round, contributions: BTreeMap::new(), arrivals: None, reducing: false }
    }

    /// Takes a contribution; returns false if the site has delivered already. The caller checks that the
    /// round is open.
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

    /// Returns the first arrival. Empty contributions do not start the deadline.
    pub fn first_arrival(&self) -> Option<Duration> {
        self.arrivals.map(|(first, _)| first)
    }

    /// Returns the time between the first and last arrival.
    pub fn spread(&self) -> Duration {
        self.arrivals.map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
    }

    pub fn is_full(&self, sites: &BTreeSet<SiteId>) -> bool {
        self.lacks(sites).next().is_none()
    }

    /// Returns the sites of these that have not delivered.
    pub fn lacks<'a>(&'a self, sites: &'a BTreeSet<SiteId>) -> impl Iterator<Item = SiteId> + 'a {
        sites.iter().copied().filter(|site| !self.contributions.contains_key(site))
    }

    /// Returns the number of contributions in memory.
    pub fn held(&self) -> usize {
        self.contributions.len()
    }

    /// Returns the non-empty contributions, in site order.
    pub fn contributions(&self) -> Vec<Contribution> {
        self.contributions.values().filter(|contribution| contribution.weight > 0).cloned().collect()
    }
}
