//! The end of a generation and the start of the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

use super::super::SMALL_RESULTS_KEPT_ROUNDS;
use super::super::arrivals::Arrivals;
use super::super::collection::Collection;
use super::super::command::Command;
use super::super::duties::Duties;
use super::super::pulls::HOLDERS_MAX;
use super::Member;
use crate::control::message::{GenerationStart, Hash, Settled, Settlement};

impl Member {
    /// Ends the present generation and reports the held results. No other state changes until the next one
    /// begins.
    pub(super) fn settle(&mut self, generation: Generation) {
        let present = self.duties.as_ref().map(|duties| duties.generation());
        if present >= Some(generation) || self.settling > Some(generation) {
            return;
        }
        self.settling = Some(generation);
        self.pulls.clear();
        let open_round = self.open_round();
        self.commands.push_back(Command::ReportSettled(Settled {
            generation,
            open_round,
            computing: self.computing.unwrap_or(open_round),
            results: self.results.of_open_round(),
        }));
    }

    pub(super) fn begin(&mut self, start: &GenerationStart) {
        let generation = start.membership.generation;
        let present = self.duties.as_ref().map(|duties| duties.generation());
        if present >= Some(generation) || self.settling > Some(generation) {
            return;
        }
        let Some(duties) = Duties::new(self.me, self.open_round(), start) else { return };
        self.site = duties.site;
        self.schedule = start.schedule.for_fragments(self.layout.count());
        self.results.follow(self.schedule);
        let duties = Arc::new(duties);
        self.duties = Some(duties.clone());
        self.settling = None;
        self.accusations = 0;
        self.lost = false;
        self.choose_first_round(&duties);
        self.forget_collected(&duties);
        if let Some(settlement) = &start.settlement {
            self.follow(&duties, settlement);
        }
        self.move_residuals();
        self.move_owner_residuals(&duties);
        self.offer_open_round();
        for frame in self.early.take(generation) {
            self.receive_present(&duties, frame);
        }
        if self.early.overflowed(generation) {
            self.lose(self.open_round(), FragmentId(0));
        }
    }

    /// Chooses the first round of a new member. It may change until the device has started.
    fn choose_first_round(&mut self, duties: &Duties) {
        let first = duties.first_round();
        self.starts_at = match self.starts_at {
            None if duties.is_active(self.me, self.open_round()) => Some(self.open_round()),
            Some(round) if self.computing.is_some() => Some(round),
            Some(round) if duties.is_active(self.me, round) => Some(round.min(first)),
            _ => Some(first),
        };
    }

    /// Drops data collected for duties of the old generation and takes up the new ones.
    fn forget_collected(&mut self, duties: &Duties) {
        self.missed.clear();
        self.pulls.clear();
        for upload in &mut self.uploads {
            upload.begin_generation();
        }
        let owned = self.layout.fragments().filter(|&fragment| duties.owns(fragment));
        let first = |fragment| self.schedule.next_due(duties.first_made(fragment), fragment);
        self.collections = owned.map(|fragment| (fragment, Collection::new(first(fragment)))).collect();
        self.arrivals = Arrivals::default();
        for (fragment, collection) in &self.collections {
            self.arrivals.open(collection.round, *fragment);
        }
    }

    /// Empties the owner's residuals of fragments that others now own.
    fn move_owner_residuals(&mut self, duties: &Duties) {
        let moved = self.reduced.extract_if(.., |&fragment| !duties.owns(fragment));
        let command =
            |fragment| Command::MoveOwnerResidual { fragment, void_from: duties.first_made(fragment) };
        self.commands.extend(moved.map(command));
    }

    /// Adopts the settled results: retracts void ones, pulls missing ones.
    fn follow(&mut self, duties: &Duties, settlement: &Settlement) {
        let last = settlement.open_round;
        let adopted: BTreeMap<FragmentId, Hash> =
            settlement.results.iter().map(|adopted| (adopted.fragment, adopted.hash)).collect();
        self.results.keep_adopted(last, &adopted);
        self.note_without_me(last, &adopted);
        for (fragment, upload) in self.layout.fragments().zip(&mut self.uploads) {
            let void = duties.first_made(fragment);
            if let Some(compression) = upload.compression.take_if(|compression| compression.round >= void) {
                self.commands.push_back(Command::Retract { round: compression.round, fragment });
            }
        }
        if last.0.saturating_sub(self.open_round().0) > SMALL_RESULTS_KEPT_ROUNDS {
            return self.lose(self.open_round(), FragmentId(0));
        }
        for round in (self.open_round().0..last.0).map(Round) {
            for fragment in self.layout.fragments() {
                self.want(duties, (round, fragment), None, &settlement.complete_at);
            }
        }
        for result in &settlement.results {
            self.want(duties, (last, result.fragment), Some(result.hash), &result.holders);
        }
    }

    /// Notes results adopted before this member contributed, which do not contain its update. They may still
    /// name its site, for other members of it.
    fn note_without_me(&mut self, round: Round, adopted: &BTreeMap<FragmentId, Hash>) {
        let (of, before) = std::mem::take(&mut self.without_me);
        let is_to_come = |fragment: FragmentId| {
            !self.contributed.contains_key(&round) && self.ready.weight(round, fragment).is_none()
        };
        // Void results are made again, with its update.
        let is_without =
            |fragment: &FragmentId| of == round && before.contains(fragment) || is_to_come(*fragment);
        let without = adopted.keys().copied().filter(is_without).collect();
        self.without_me = (round, without);
    }

    fn want(
        &mut self,
        duties: &Duties,
        (round, fragment): (Round, FragmentId),
        hash: Option<Hash>,
        holders: &[WorkerId],
    ) {
        let here = round < self.open_round() || self.results.get(round, fragment).is_some();
        if !here && !self.pulls.want((round, fragment), hash, duties.nearest(holders, HOLDERS_MAX)) {
            self.lose(round, fragment);
        }
    }
}
