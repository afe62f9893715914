//! The device's updates on their way to the round protocol.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::control::message::RoundReport;
use longhaul_proto::round::Event;

use super::rounds::empty_report;
use super::running::{Running, Stage};
use super::synchroniser::Synchroniser;
use crate::message::{FinishedPart, LocalUpdate};
use crate::reduce::mean::norm;
use crate::sparse_ranges::SparseRanges;

impl Synchroniser {
    /// Handles the end of a round on the device.
    pub(super) fn contribute(&mut self, update: LocalUpdate) -> Result<()> {
        let LocalUpdate { round, values, columns, repeated, weight, steps, compute, spare_cores, .. } =
            update;
        tracing::debug!(%round, "the device contributes");
        let dense = self.shares_everything_in(round);
        let (loss, gradient_norm) = (self.disclosed(update.loss), self.disclosed(update.gradient_norm));
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        let (finished, parts) = take_finished(running, round);
        ensure!(
            running.contributions.of_rounds.len() < ROUNDS_HELD_MAX,
            "the round protocol releases nothing"
        );
        if let Some(gradient) = columns {
            let Running { contributions, rounds, .. } = &mut **running;
            let (layouts, limit) = (&rounds.layouts, self.config.sync.norm_limit);
            contributions.columns.contribute(round, &gradient, layouts, weight, limit)?;
        }
        let (mut delta, snapshot) = if dense {
            (values, None)
        } else {
            let due = running.rounds.schedule.due_stretches(&running.rounds.layout, round);
            let memory = std::mem::take(&mut running.contributions.memory);
            let mut delta = running.replica.delta(&values, due, memory);
            running.contributions.unsent.leave_out(&mut delta);
            (delta, Some((round, values)))
        };
        let is_redundant = running.rounds.layouts.is_redundant(round);
        if is_redundant {
            let gradient = delta.into_whole(running.rounds.layout.values as usize);
            let fragments = running.rounds.layout.fragments();
            // A norm for each fragment, with which the owners' checks and comparisons work as with gradients.
            let norms = fragments.map(|of| norm(&gradient[running.rounds.layout.range(of)]) as f32);
            delta = SparseRanges::whole(norms.collect());
            running.contributions.redundant.insert(round, gradient);
        }
        if let Some(tiling) = &running.rounds.tiling {
            let flat = delta.into_whole(running.rounds.layout.values as usize);
            delta = SparseRanges::whole(tiling.to_exchanged(&flat));
        }
        for range in finished.iter().map(|fragment| running.rounds.layout.range(*fragment)) {
            if let (Some(values), Some(part)) = (delta.get_mut(range.clone()), parts.get(range)) {
                values.copy_from_slice(part);
            }
        }
        if weight > 0 && !is_redundant {
            let rest = running.rounds.layout.fragments().filter(|fragment| !finished.contains(fragment));
            contribute_carry(running, round, rest, self.config.sync.norm_limit, &mut delta);
        }
        running.contributions.snapshot = snapshot;
        running.contributions.of_rounds.insert(round, delta);
        running.contributions.repeated.insert(round, repeated);
        let mut measured = None;
        if let Some(adaptation) = &mut running.codec.adaptation
            && steps > 0
        {
            adaptation.contributed(round, self.outside.now(), compute / steps, spare_cores);
            measured = adaptation.measured();
        }
        running.device.idle = true;
        let report = RoundReport { loss, gradient_norm, samples: weight, measured, ..empty_report(round) };
        running.results.reports.insert(round, report);
        self.feed(Event::Contribute { round, weight });
        Ok(())
    }

    /// Sends a final part of the device's gradient before the rest. After the round's close, the protocol decides once the whole is here.
    pub(super) fn finished(&mut self, part: FinishedPart) -> Result<()> {
        let FinishedPart { round, weight, start, values } = part;
        tracing::trace!(%round, start, values = values.len(), "a part is final");
        let norm_limit = self.config.sync.norm_limit;
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        if running.member.open_round() > round {
            return Ok(());
        }
        if running.contributions.finished.as_ref().is_none_or(|finished| finished.round != round) {
            ensure!(
                running.contributions.of_rounds.len() < ROUNDS_HELD_MAX,
                "the round protocol releases nothing"
            );
            let zeros = vec![0.0; running.rounds.layout.values as usize];
            running.contributions.of_rounds.insert(round, SparseRanges::whole(zeros));
            running.contributions.finished = Some(Finished { round, weight, fragments: BTreeSet::new() });
        }
        let (Some(mut update), Some(finished)) =
            (running.contributions.of_rounds.remove(&round), &mut running.contributions.finished)
        else {
            return Ok(());
        };
        let place = start..start + values.len();
        let fragments: Vec<_> = running.rounds.layout.touched_by(&place).collect();
        finished.fragments.extend(&fragments);
        if let Some(place) = update.get_mut(place) {
            place.copy_from_slice(&values);
        }
        contribute_carry(running, round, fragments.iter().copied(), norm_limit, &mut update);
        running.contributions.of_rounds.insert(round, update);
        for fragment in fragments {
            self.feed(Event::FragmentReady { round, fragment, weight });
        }
        Ok(())
    }
}

/// The round in progress, of which only parts are here.
pub(super) struct Finished {
    pub round: Round,
    /// Samples behind it.
    pub weight: u32,
    /// Fragments that are here.
    pub fragments: BTreeSet<FragmentId>,
}

/// Contributions kept: one in flight, one requested again by a void round, and one in computation.
const ROUNDS_HELD_MAX: usize = 4;

/// Returns the fragments of a round that left before its end, and their values.
fn take_finished(running: &mut Running, round: Round) -> (BTreeSet<FragmentId>, SparseRanges) {
    let finished = running.contributions.finished.take().filter(|finished| finished.round == round);
    finished
        .and_then(|finished| Some((finished.fragments, running.contributions.of_rounds.remove(&round)?)))
        .unwrap_or_default()
}

/// Moves the carry into the contribution, for those of these fragments that are due.
fn contribute_carry(
    running: &mut Running,
    round: Round,
    fragments: impl Iterator<Item = FragmentId>,
    norm_limit: f64,
    delta: &mut SparseRanges,
) {
    let Some(mut carry) = running.contributions.carry.take() else { return };
    for range in fragments
        .filter(|f| running.rounds.schedule.is_due(round, *f))
        .map(|f| running.rounds.layout.range(f))
    {
        if let Some(slice) = delta.get_mut(range.clone()) {
            add_carry(slice, &mut carry[range], norm_limit);
        }
    }
    running.contributions.carry = carry.iter().any(|value| *value != 0.0).then_some(carry);
}

/// Share of the owner's limit for the carry: a round's own norm may be a few times that of others.
pub(super) const CARRIED_SHARE: f64 = 0.25;

/// Moves the acceptable part of the carry into this round's slice: up to a quarter of the owner's limit times the slice's norm.
///
/// Otherwise a site that was late for long, or refused once, would be refused for ever, because its carry only grows.
pub(super) fn add_carry(slice: &mut [f32], carry: &mut [f32], norm_limit: f64) {
    let (own, carried) = (norm(slice), norm(carry));
    let room = CARRIED_SHARE * norm_limit * own;
    if norm_limit == 0.0 || carried <= room {
        slice.iter_mut().zip(&*carry).for_each(|(value, carry)| *value += carry);
        carry.fill(0.0);
        return;
    }
    let share = (room / carried) as f32;
    for (value, carry) in slice.iter_mut().zip(carry) {
        let part = share * *carry;
        *value += part;
        *carry -= part;
    }
}
