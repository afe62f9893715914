//! The work of an owner: collecting contributions and publishing results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{FragmentId, Generation, Round, SiteId};

use super::super::collection::Collection;
use super::super::command::{Command, Contribution};
use super::super::duties::Duties;
use super::super::frame::FrameKind;
use super::super::result::FragmentResult;
use super::super::results::{Held, Inserted};
use super::Member;

impl Member {
    /// Takes a site's contribution to an owned fragment.
    pub(super) fn collect(
        &mut self,
        duties: &Duties,
        fragment: FragmentId,
        round: Round,
        contribution: Contribution,
    ) {
        let now = self.now;
        let Some(collection) = self.collections.get_mut(&fragment) else { return };
        if round != collection.round || collection.reducing {
            self.dropped.late += 1;
        } else if collection.take(now, contribution) {
            if let Some(first) = collection.first_arrival() {
                self.arrivals.came(round, fragment, first);
            }
            self.close_if(duties, fragment, Collection::is_full);
        } else {
            self.dropped.duplicate += 1;
        }
    }

    /// Closes the rounds past their deadline.
    pub(super) fn close_at_deadline(&mut self) {
        let Some(duties) = self.running() else { return };
        let now = self.now;
        let deadlines: BTreeMap<Round, Duration> = self.deadlines().collect();
        for fragment in self.layout.fragments() {
            self.close_if(&duties, fragment, |collection, sites| {
                let is_due = deadlines.get(&collection.round).is_some_and(|due| *due <= now);
                collection.is_full(sites) || collection.first_arrival().is_some() && is_due
            });
        }
    }

    /// Returns the deadline of each round. A site may send finished fragments while it computes the rest, so
    /// a round's clock starts when all its fragments owned here have arrived at least once; until then it has
    /// no deadline.
    fn deadlines(&self) -> impl Iterator<Item = (Round, Duration)> + '_ {
        self.arrivals.complete().map(|(round, began)| (round, began + self.deadline.wait(round)))
    }

    /// Closes the complete rounds that were too far ahead of this member until now.
    pub(super) fn close_full(&mut self) {
        let Some(duties) = self.running() else { return };
        for fragment in self.layout.fragments() {
            self.close_if(&duties, fragment, Collection::is_full);
        }
    }

    /// Returns the next deadline.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let last = self.results.last_kept();
        self.deadlines().filter(|(round, _)| *round <= last).map(|(_, due)| due).min()
    }

    fn close_if(
        &mut self,
        duties: &Duties,
        fragment: FragmentId,
        due: impl FnOnce(&Collection, &BTreeSet<SiteId>) -> bool,
    ) {
        let last_kept = self.results.last_kept();
        let Some(collection) = self.collections.get_mut(&fragment) else { return };
        let round = collection.round;
        if collection.reducing || round > last_kept {
            return;
        }
        let sites = duties.contributing_sites(round);
        if !due(collection, sites) {
            return;
        }
        let spread = if collection.is_full(sites) { collection.spread() } else { self.deadline.wait(round) };
        if sites.len() > 1 {
            self.deadline.record(round, spread);
        }
        collection.reducing = true;
        self.arrivals.close(round, fragment, collection.first_arrival());
        let contributions = collection.contributions();
        if contributions.is_empty() {
            return self.publish(duties, fragment, FragmentResult::nothing());
        }
        let generation = duties.generation();
        self.reduced.insert(fragment);
        self.commands.push_back(Command::Reduce { generation, round, fragment, contributions });
    }

    pub(super) fn reduced(
        &mut self,
        generation: Generation,
        round: Round,
        fragment: FragmentId,
        result: FragmentResult,
    ) {
        let Some(duties) = self.running().filter(|duties| duties.generation() == generation) else { return };
        let Some(collection) = self.collections.get(&fragment) else { return };
        if collection.round == round && collection.reducing {
            self.publish(&duties, fragment, result);
        }
    }

    /// Hashes, keeps and forwards the collected round's result.
    fn publish(&mut self, duties: &Duties, fragment: FragmentId, result: FragmentResult) {
        let Some(collection) = self.collections.get_mut(&fragment) else { return };
        let round = collection.round;
        *collection = Collection::new(self.schedule.next_due(round.next(), fragment));
        self.arrivals.open(collection.round, fragment);
        let bytes = result.encode();
        let hash = *blake3::hash(&bytes).as_bytes();
        // Its parts share the memory of the bytes sent; separate parts would take twice the memory.
        let result = FragmentResult::decode(&bytes).unwrap_or(result);
        if self.keep_result(round, fragment, Held { bytes, hash, result }) == Inserted::New {
            self.pass_on(duties, round, fragment);
            self.complete_rounds();
        }
    }

    /// Sends a result to the receivers of this member's copy.
    pub(super) fn pass_on(&mut self, duties: &Duties, round: Round, fragment: FragmentId) {
        if round < duties.first_made(fragment) {
            return;
        }
        let Some(held) = self.results.get(round, fragment) else { return };
        let header = self.header(duties, FrameKind::Result, round, fragment, 0);
        let (body, hash) = (held.bytes.clone(), Some(held.hash));
        let send = |to| Command::Send { to, header, body: body.clone(), hash };
        self.commands.extend(duties.result_receivers(fragment).into_iter().map(send));
    }
}
