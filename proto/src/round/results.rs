//! The results that a member has.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, SiteId};
use longhaul_common::plan::FragmentLayout;
use longhaul_common::schedule::RoundSchedule;

use super::result::{Content, FragmentResult};
use super::{RESULTS_KEPT_ROUNDS, ROUNDS_AHEAD_MAX, SMALL_RESULTS_KEPT_ROUNDS};
use crate::control::message::{Hash, HeldResult};

/// A published result, decoded.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub bytes: Bytes,
    pub hash: Hash,
    pub result: FragmentResult,
}

/// Outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    New,
    /// The same bytes are present.
    Duplicate,
    /// Other bytes are present.
    Conflict,
}

/// The results of one round.
#[derive(Debug)]
struct Row {
    /// By fragment.
    results: Vec<Option<Held>>,
    /// Number of missing due results: each arrival checks whether it is the last.
    missing: usize,
}

impl Row {
    fn empty(fragments: usize) -> Self {
        Self { results: vec![None; fragments], missing: 0 }
    }

    fn count_missing(&mut self, round: Round, schedule: &RoundSchedule) {
        let is_missing = |(fragment, held): &(FragmentId, &Option<Held>)| {
            held.is_none() && schedule.is_due(round, *fragment)
        };
        self.missing = (0..).map(FragmentId).zip(&self.results).filter(is_missing).count();
    }

    /// Returns its bytes in memory, including the slots of fragments that are not due.
    fn bytes(&self) -> u64 {
        let places = (self.results.len() * size_of::<Option<Held>>()) as u64;
        self.results.iter().flatten().map(Held::bytes).fold(places, |sum, bytes| sum + bytes)
    }
}

impl Held {
    /// Returns its bytes in memory beyond its slot. The contributions are slices of the bytes.
    fn bytes(&self) -> u64 {
        let named = self.result.contributors.len() * size_of::<(SiteId, u32)>();
        let parts = match &self.result.content {
            Content::Bundle(parts) => parts.len() * size_of::<Bytes>(),
            Content::Mean(_) => 0,
        };
        (self.bytes.len() + named + parts) as u64
    }
}

/// Results of the rounds from [`RESULTS_KEPT_ROUNDS`] before the open one to [`ROUNDS_AHEAD_MAX`] after it,
/// and of up to [`SMALL_RESULTS_KEPT_ROUNDS`] before it while together they take no more than the model.
#[derive(Debug)]
pub(super) struct Results {
    fragments: usize,
    schedule: RoundSchedule,
    open: Round,
    /// Of the fragments that are due.
    rounds: BTreeMap<Round, Row>,
    /// Bytes of the rounds before the open one.
    over_bytes: u64,
    /// Bytes of the model in f32.
    model_bytes: u64,
    /// The result of a fragment that is not due, known without computing it.
    nothing: Held,
}

impl Results {
    pub fn new(layout: FragmentLayout, schedule: RoundSchedule, open: Round) -> Self {
        let result = FragmentResult::nothing();
        let bytes = result.encode();
        let nothing = Held { hash: *blake3::hash(&bytes).as_bytes(), bytes, result };
        let model_bytes = 4 * layout.values;
        let rounds = BTreeMap::new();
        Self {
            fragments: layout.count() as usize,
            schedule,
            open,
            rounds,
            over_bytes: 0,
            model_bytes,
            nothing,
        }
    }

    /// Adopts a schedule. Open and past rounds are equal in both.
    pub fn follow(&mut self, schedule: RoundSchedule) {
        self.schedule = schedule;
        for (round, row) in &mut self.rounds {
            row.count_missing(*round, &schedule);
        }
    }

    /// Returns the first round with missing results.
    pub fn open(&self) -> Round {
        self.open
    }

    /// Returns the last round whose results are kept.
    pub fn last_kept(&self) -> Round {
        Round(self.open.0.saturating_add(ROUNDS_AHEAD_MAX))
    }

    /// Returns a result that is present. That of a fragment that is not due always is.
    pub fn get(&self, round: Round, fragment: FragmentId) -> Option<&Held> {
        if !self.schedule.is_due(round, fragment) {
            return Some(&self.nothing);
        }
        self.rounds.get(&round)?.results.get(fragment.0 as usize)?.as_ref()
    }

    /// Returns the fragments missing from the open round.
    pub fn missing(&self) -> impl Iterator<Item = FragmentId> + '_ {
        let fragments = (0..self.fragments as u32).map(FragmentId);
        fragments.filter(|&fragment| self.get(self.open, fragment).is_none())
    }

    /// Inserts a result. The caller has checked that the round is not after [`Self::last_kept`] and that the
    /// fragment exists.
    pub fn insert(&mut self, round: Round, fragment: FragmentId, held: Held) -> Inserted {
        if let Some(present) = self.get(round, fragment) {
            return if present.hash == held.hash { Inserted::Duplicate } else { Inserted::Conflict };
        }
        if round < self.open {
            return Inserted::Duplicate;
        }
        let row = self.row(round);
        if let Some(slot) = row.results.get_mut(fragment.0 as usize) {
            *slot = Some(held);
            row.missing -= 1;
        }
        Inserted::New
    }

    /// If the open round is complete, opens the next one and returns the completed one with its results.
    pub fn advance(&mut self) -> Option<(Round, Vec<FragmentResult>)> {
        let round = self.open;
        let row_bytes = self.rounds.get(&round).filter(|row| row.missing == 0)?.bytes();
        let results =
            (0..self.fragments as u32).map(|f| Some(self.get(round, FragmentId(f))?.result.clone()));
        let results = results.collect::<Option<Vec<_>>>()?;
        self.open = round.next();
        self.over_bytes += row_bytes;
        self.forget_old();
        Some((round, results))
    }

    fn forget_old(&mut self) {
        while let Some(oldest) = self.rounds.first_entry() {
            let age = self.open.0.saturating_sub(oldest.key().0);
            let is_small = self.over_bytes <= self.model_bytes;
            if age <= RESULTS_KEPT_ROUNDS || is_small && age <= SMALL_RESULTS_KEPT_ROUNDS {
                return;
            }
            self.over_bytes -= oldest.remove().bytes();
        }
    }

    /// Drops results of `round` that are not adopted, and all of later rounds.
    pub fn keep_adopted(&mut self, round: Round, adopted: &BTreeMap<FragmentId, Hash>) {
        self.rounds.split_off(&round.next());
        let schedule = self.schedule;
        let row = self.row(round);
        for (fragment, slot) in (0..).map(FragmentId).zip(&mut row.results) {
            let counts = adopted.get(&fragment);
            slot.take_if(|held| counts != Some(&held.hash));
        }
        row.count_missing(round, &schedule);
    }

    fn row(&mut self, round: Round) -> &mut Row {
        self.rounds.entry(round).or_insert_with(|| {
            let mut row = Row::empty(self.fragments);
            row.count_missing(round, &self.schedule);
            row
        })
    }

    /// Returns the number of results in memory.
    pub fn held(&self) -> usize {
        self.rounds.values().flat_map(|row| &row.results).flatten().count()
    }

    /// Returns the results of the open round that are present.
    pub fn of_open_round(&self) -> Vec<HeldResult> {
        let row = self.rounds.get(&self.open).map_or(&[][..], |row| row.results.as_slice());
        let held =
            (0..).map(FragmentId).zip(row).filter_map(|(fragment, slot)| Some((fragment, slot.as_ref()?)));
        held.map(|(fragment, held)| HeldResult {
            fragment,
            hash: held.hash,
            sites: held.result.sites().collect(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRIBUTORS: usize = 3;

    /// Returns a result of this length.
    fn held(bytes: usize) -> Held {
        let contributors = vec![(SiteId(0), 1); CONTRIBUTORS];
        let bytes: Bytes = vec![7; bytes].into();
        let content = Content::Bundle(vec![bytes.clone(); CONTRIBUTORS]);
        Held {
            hash: *blake3::hash(&bytes).as_bytes(),
            bytes,
            result: FragmentResult { contributors, content },
        }
    }

    /// Returns the number of rounds kept after 3000 with this many bytes in each of two fragments of this
    /// many values.
    fn kept(fragment_values: u32, bytes: usize) -> u64 {
        let layout = FragmentLayout { values: 2 * u64::from(fragment_values), fragment_values };
        let schedule = RoundSchedule {
            warmup_rounds: 0,
            warmup_every: 1,
            every: 1,
            overlap: 1,
            groups: 1,
            exchanges: 1,
            steps: 5000,
            changes: longhaul_common::schedule::Changes::NONE,
        };
        let mut results = Results::new(layout, schedule, Round(0));
        for round in (0..3000).map(Round) {
            for fragment in layout.fragments() {
                assert_eq!(results.insert(round, fragment, held(bytes)), Inserted::New);
            }
            assert_eq!(results.advance().map(|(over, _)| over), Some(round));
            let held: u64 = results.rounds.values().map(Row::bytes).sum();
            assert_eq!(results.over_bytes, held);
            assert!(held <= results.model_bytes.max((RESULTS_KEPT_ROUNDS + 1) * row_bytes(bytes)));
        }
        let kept = results.rounds.keys().next().map_or(0, |round| 3000 - round.0);
        assert_eq!(results.get(Round(2999 - kept), FragmentId(1)).map(|held| &held.hash), None);
        kept
    }

    /// Bytes of a round of two such fragments: each has a slot, the published bytes, and its contributors.
    fn row_bytes(bytes: usize) -> u64 {
        let in_it = CONTRIBUTORS * (size_of::<(SiteId, u32)>() + size_of::<Bytes>());
        2 * (size_of::<Option<Held>>() + bytes + in_it) as u64
    }

    #[test]
    fn small_results_are_kept_for_longer_and_never_take_more_memory_than_the_model() {
        assert_eq!(kept(1024, 4096), RESULTS_KEPT_ROUNDS);
        assert_eq!(kept(8192, 40), 8 * 8192 / row_bytes(40));
        assert_eq!(kept(8192, 1), 8 * 8192 / row_bytes(1), "what is published is the least of it");
        assert_eq!(kept(1 << 18, 1), SMALL_RESULTS_KEPT_ROUNDS);
    }
}
