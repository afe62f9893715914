//! The members' round reports: losses, refusals, parity, pace, and the data positions that count.

pub(super) mod audits;
pub(super) mod evaluations;
pub(super) mod late;
pub(super) mod ledger;
pub(super) mod pace;
pub(super) mod parity;
pub(super) mod progress;
pub(super) mod punctuality;
pub(super) mod ranges;
pub(super) mod refusals;
pub(super) mod releases;
pub(super) mod reports;
pub(super) mod residuals;
pub(super) mod slow_joiners;
pub(super) mod tally;
pub(super) mod tasks;

use std::collections::BTreeMap;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use serde::{Deserialize, Serialize};

use self::audits::Audits;
use self::pace::Watch;
use self::parity::{Parity, Verdict};
use self::progress::Summaries;
use self::refusals::Refusals;
use self::slow_joiners::SlowJoiners;

/// The members' round reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Accounting {
    summaries: Summaries,
    refusals: Refusals,
    audits: Audits,
    /// Measurements by members, for the pace of rounds.
    watch: Watch,
    /// By rank.
    parity: BTreeMap<u32, Parity>,
    slow_joiners: SlowJoiners,
}

impl Accounting {
    pub(super) fn new(config: &RunConfig) -> Self {
        Self {
            summaries: Summaries::default(),
            refusals: Refusals::default(),
            audits: Audits::default(),
            watch: Watch::new(config),
            parity: BTreeMap::new(),
            slow_joiners: SlowJoiners::default(),
        }
    }

    /// A worker is not here any more.
    pub(super) fn departed(&mut self, worker: WorkerId) {
        self.watch.forget(worker);
        self.audits.forget(worker);
        self.distrust_hashes_of(worker);
    }

    /// Rounds from this one on are done again.
    pub(super) fn cut_back(&mut self, round: Round) {
        self.parity.values_mut().for_each(|parity| parity.cut_back(round));
        self.summaries.cut_back(round);
        self.refusals.cut_back(round);
    }

    /// All begin anew, with other parts of the model.
    pub(super) fn begin_anew(&mut self, workers: impl Iterator<Item = WorkerId>) {
        self.parity.clear();
        workers.for_each(|worker| self.watch.forget(worker));
    }

    /// Discards a worker's reported hashes.
    pub(super) fn distrust_hashes_of(&mut self, worker: WorkerId) {
        self.parity.values_mut().for_each(|parity| parity.forget(worker));
    }

    /// Discards its round reports as well.
    pub(super) fn distrust(&mut self, worker: WorkerId) {
        self.distrust_hashes_of(worker);
        self.summaries.forget(worker);
    }

    pub(super) fn parity_of(&self, rank: u32) -> Option<&Parity> {
        self.parity.get(&rank)
    }

    /// The newest verdict on each part of the model.
    pub(super) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.parity.values().filter_map(Parity::latest)
    }

    pub(super) fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    pub(super) fn summaries_mut(&mut self) -> &mut Summaries {
        &mut self.summaries
    }

    pub(super) fn audits(&self) -> &Audits {
        &self.audits
    }

    pub(super) fn refused_unnamed(&self) -> u64 {
        self.refusals.unnamed()
    }
}
