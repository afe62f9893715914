//! The device's side of a round: its release at the barrier, and the application of results.

use std::collections::BTreeMap;

use anyhow::Result;
use longhaul_common::config::{LateRule, RunConfig};
use longhaul_common::id::{FragmentId, Round, SiteId};
use longhaul_proto::control::message::{Hash, NOT_COMPARED, RoundReport, ToCoordinator};
use longhaul_proto::round::FragmentResult;

use super::outer::outer_step;
use super::replica::Replica;
use super::running::{PassedRound, Rounds, Running, Stage};
use super::synchroniser::{Outcome, Synchroniser};
use crate::activity::Activity;
use crate::adapt::backlog::{Waiting, in_all};
use crate::message::{Applied, DeviceState, Enter, Load, ParameterChange, RoundUpdate, ToDevice};
use crate::sparse_ranges::SparseRanges;
use crate::unsent::Unsent;

impl Synchroniser {
    /// Applies complete rounds whose turn has come, and releases the device.
    pub(super) fn advance(&mut self) -> Result<()> {
        let Stage::Running(running) = &self.stage else { return Ok(()) };
        if let Some(next) = running.member.next_round().or_else(|| end_reached(running)) {
            self.enter_or_jump(next)?;
        }
        self.apply_completed()
    }

    /// Lets the device begin `next`: as its following or first round, or after rounds that completed without it.
    fn enter_or_jump(&mut self, next: Round) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        if !running.device.idle || running.device.named == Some(next) {
            return Ok(());
        }
        // The barrier has already released it; the device's message about it is in flight.
        if running.device.named.is_some() && !self.outside.barrier().withdraw() {
            return Ok(());
        }
        running.device.named = None;
        if running.device.entered && running.device.begun.map(Round::next) == Some(next) {
            running.device.named = Some(next);
            self.outside.barrier().set_next(next);
            return Ok(());
        }
        // A start or a jump: the device loads the state from before `next`, so all earlier rounds must be here.
        let known = running.replica.next_round().0 + running.results.completed.len() as u64;
        if known >= next.0 {
            return self.enter(next);
        }
        if let Some(following) = following_for_result(&self.config, running) {
            running.device.named = Some(following);
            self.outside.barrier().set_next(following);
        }
        Ok(())
    }

    fn enter(&mut self, next: Round) -> Result<()> {
        let Stage::Running(running) = &self.stage else { return Ok(()) };
        let from = running.replica.next_round();
        let dense = self.shares_everything_in(from);
        if running.results.completed.iter().any(|(round, _)| self.shares_everything_in(*round) != dense) {
            // The warm-up's outcome is on the device, and later results apply to the state here.
            let reason = "the others were faster, and have left the warm-up";
            self.outcome = Some(Outcome::Rejoin(reason.into()));
            return Ok(());
        }
        if running.results.completed.iter().any(|(round, _)| running.rounds.layouts.is_redundant(*round)) {
            let reason =
                "the others were faster, and what each computed by itself in the warm-up is in no result";
            self.outcome = Some(Outcome::Rejoin(reason.into()));
            return Ok(());
        }
        let begins_at = running.device.begun.map(Round::next).max(running.member.first_round());
        if self.config.parallel.is_divided() && begins_at.is_some_and(|begins_at| begins_at < next) {
            // The other workers of its replica are in that round.
            let reason = "the other replicas were faster, and completed rounds without this one";
            self.outcome = Some(Outcome::Rejoin(reason.into()));
            return Ok(());
        }
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        let first = !running.device.entered;
        let mut replay = Vec::new();
        while let Some((round, results)) = running.results.completed.pop_front() {
            if dense {
                note_passed(running, round, &results, NOT_COMPARED);
                replay.push((round, common_mean(running, round, &results)));
            } else {
                apply_to_replica(&self.config, running, round, &results);
                let state_hash = running.replica.hash();
                note_passed(running, round, &results, state_hash);
            }
        }
        let load = match running.device.load.take().filter(|_| first) {
            Some(load) if dense || from == next => load,
            Some(load) => with_parameters(load, &running.replica),
            None if dense => Load::Nothing,
            None => Load::Parameters(running.replica.parameters().to_vec()),
        };
        // A device that never began may have been released to a round that completed before.
        let due = running.device.begun.map(Round::next).max(running.member.first_round()).unwrap_or(next);
        if due < next {
            tracing::warn!(from = due.0, to = next.0, "the others were faster: skipping rounds");
        }
        running.contributions.snapshot = None;
        running.contributions.unsent = Unsent::default();
        running.device.entered = true;
        running.device.named = Some(next);
        running.device.epoch = self.outside.barrier().renew();
        let put_back = std::mem::take(&mut running.device.put_back);
        let place = running.device.place.take();
        let enter = Enter { epoch: running.device.epoch, place, round: next, load, put_back, replay };
        self.report_passed(due, enter.replay.last().map(|(round, _)| *round));
        self.tell_device(ToDevice::Enter(Box::new(enter)))?;
        self.outside.barrier().set_next(next);
        Ok(())
    }

    fn apply_completed(&mut self) -> Result<()> {
        loop {
            let Stage::Running(running) = &self.stage else { return Ok(()) };
            let Some((round, _)) = running.results.completed.front() else { return Ok(()) };
            let round = *round;
            let dense = self.shares_everything_in(round);
            let Stage::Running(running) = &mut self.stage else { return Ok(()) };
            // A round's delta is relative to the parameters before it, so the result waits for a round in computation.
            let waits_for_device = running.device.entered && running.results.reports.contains_key(&round);
            if !running.device.entered && dense || running.device.entered && !waits_for_device {
                return Ok(());
            }
            let Some((_, results)) = running.results.completed.pop_front() else { return Ok(()) };
            let updating = self.outside.begin(Activity::Update { round });
            let update = if dense {
                RoundUpdate::Mean(common_mean(running, round, &results))
            } else {
                apply_to_replica(&self.config, running, round, &results);
                match running.contributions.snapshot.take_if(|(of, _)| *of == round) {
                    Some((_, snapshot)) => {
                        let mut change = change_of(&self.config, running, round, snapshot);
                        if self.config.sync.late == LateRule::KeepUnsent {
                            keep_unsent(running, round, &mut change);
                        }
                        RoundUpdate::Parameters(change)
                    }
                    None => {
                        let state_hash = running.replica.hash();
                        note_passed(running, round, &results, state_hash);
                        // These parameters go along for the device's entry.
                        let load = running.device.load.take().filter(|_| !running.device.entered);
                        running.device.load = load.map(|load| with_parameters(load, &running.replica));
                        continue;
                    }
                }
            };
            let residual_ratio = match dense || self.config.privacy.is_some() {
                true => None,
                false => residual_ratio(running, round),
            };
            let state_hash = if dense { NOT_COMPARED } else { running.replica.hash() };
            drop(updating);
            if let Some((adaptation, backlog)) = running.codec.adaptation.as_mut().zip(residual_ratio) {
                adaptation.left(round, backlog);
            }
            let sites = sites_in_all(running, round, &results);
            if let Some(report) = running.results.reports.get_mut(&round) {
                report.generation = running.generation;
                report.sites = sites;
                report.residual_ratio = residual_ratio;
                report.state_hash = state_hash;
            }
            let put_back = std::mem::take(&mut running.device.put_back);
            self.tell_device(ToDevice::Apply { round, update, put_back })?;
        }
    }

    pub(super) fn applied(&mut self, applied: Applied) -> Result<()> {
        let Applied { round, validation, parameters, mut state, trained } = applied;
        tracing::debug!(%round, "the device has applied the result");
        let validation = self.disclosed(validation);
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        if let Some(state) = &mut state {
            // A checkpoint has error feedback once.
            running.contributions.unsent.put_back(&mut state.parameters);
        }
        running.codec.reducer.applied(round);
        let is_common = parameters.is_some();
        if let Some(parameters) = parameters {
            running.replica.advance(round, parameters);
            running.replica.follow(&running.rounds.schedule, round);
        }
        if is_common
            && !running.rounds.schedule.is_warmup(round.next())
            && running.codec.compressor.leave_warmup()
        {
            // Remainders of gradients cannot be part of a delta or a momentum.
            running.codec.reducer.leave_warmup();
            running.contributions.carry = None;
        }
        if let Some(mut report) = running.results.reports.remove(&round) {
            // By themselves, unlike devices differ in rounding until the end of the warm-up.
            let goes_on =
                running.rounds.schedule.is_warmup(round.next()) && round.next() < running.rounds.until;
            let is_compared = !(running.rounds.layouts.is_redundant(round) && goes_on);
            if is_common && is_compared {
                report.state_hash = running.replica.hash();
            }
            report.validation_loss = validation.map(|validation| validation.loss);
            report.validation_accuracy = validation.and_then(|validation| validation.accuracy);
            running.results.refusals.hand_over(&mut report);
            running.codec.compressor.audit().hand_over(&mut report);
            if report.samples > 0 {
                self.recovery.came_after = None;
            }
            self.report(ToCoordinator::RoundApplied(report));
        }
        self.serve_waiting()?;
        // After a jump of the device, θ_g has advanced without it, and this state belongs to no round.
        let Stage::Running(running) = &self.stage else { return Ok(()) };
        match state.filter(|_| running.replica.next_round() == round.next()) {
            Some(state) => self.write_checkpoint(round.next(), state, trained),
            None => Ok(()),
        }
    }

    /// Reports the rounds that the device has passed, whose results nobody else may be left to report: those from `due` on are skipped. `replayed`: the last one that
    /// the device replays, which is reported thereafter, with the reached state. The last report names all skipped ones, as the first of many may be dropped on the way.
    fn report_passed(&mut self, due: Round, replayed: Option<Round>) {
        let Stage::Running(running) = &mut self.stage else { return };
        let generation = running.generation;
        // A late contribution's round is among them.
        let mut reports = std::mem::take(&mut running.results.reports);
        let mut all = Vec::new();
        for PassedRound { round, sites, state_hash } in std::mem::take(&mut running.results.passed) {
            let report = reports.remove(&round).unwrap_or_else(|| empty_report(round));
            let skipped = if round >= due { vec![round] } else { Vec::new() };
            all.extend_from_slice(&skipped);
            reports.insert(round, RoundReport { generation, sites, state_hash, skipped, ..report });
        }
        if let Some(mut last) = reports.last_entry() {
            last.get_mut().skipped = all;
        }
        let waiting = replayed.and_then(|last| reports.remove_entry(&last));
        if let Some(mut last) = reports.last_entry().filter(|_| waiting.is_none()) {
            running.results.refusals.hand_over(last.get_mut());
        }
        running.results.reports.extend(waiting);
        reports.into_values().for_each(|report| self.report(ToCoordinator::RoundApplied(report)));
    }
}

/// Notes a round whose result the device never waited for.
fn note_passed(running: &mut Running, round: Round, results: &[FragmentResult], state_hash: Hash) {
    let sites = sites_in_all(running, round, results);
    running.results.passed.push(PassedRound { round, sites, state_hash });
}

/// Returns the round within which the device takes the last result that it was told, and which has no other use: the others have completed it.
fn following_for_result(config: &RunConfig, running: &Running) -> Option<Round> {
    let (begun, schedule) = (running.device.begun?, running.rounds.schedule);
    let (first, _) = running.results.completed.front()?;
    let is_told = running.device.entered && *first > running.replica.next_round();
    let is_plain = schedule.is_warmup(begun) && config.sync.opens_with_gradients();
    let overlaps = !is_plain && schedule.pace_in(begun).overlap > 0;
    (is_told && overlaps).then(|| begun.next())
}

/// Returns the first round not begun any more, once the device has nothing left to do before it.
fn end_reached(running: &Running) -> Option<Round> {
    running.member.generation()?;
    let begun_all = running.device.begun.is_some_and(|begun| begun.next() >= running.rounds.until);
    (begun_all || running.member.open_round() >= running.rounds.until).then_some(running.rounds.until)
}

/// Replaces the parameters by the synchronised ones: the device's own moments, if any, remain useful.
fn with_parameters(load: Load, replica: &Replica) -> Load {
    let parameters = replica.parameters().to_vec();
    match load {
        Load::All(state) | Load::Private { state, .. } => Load::All(DeviceState { parameters, ..state }),
        Load::Nothing | Load::Parameters(_) => Load::Parameters(parameters),
    }
}

pub(super) fn empty_report(round: Round) -> RoundReport {
    RoundReport {
        generation: longhaul_common::id::Generation(0),
        round,
        loss: None,
        gradient_norm: None,
        samples: 0,
        sites: Vec::new(),
        residual_ratio: None,
        state_hash: NOT_COMPARED,
        skipped: Vec::new(),
        validation_loss: None,
        validation_accuracy: None,
        refused: Vec::new(),
        refused_beyond: 0,
        measured: None,
        audit: Default::default(),
    }
}

fn apply_to_replica(config: &RunConfig, running: &mut Running, round: Round, results: &[FragmentResult]) {
    let mean = mean_of(running, round, results);
    let everything = 0..running.rounds.layout.values as usize;
    let with_result =
        running.rounds.layout.fragments().zip(results).filter(|(_, r)| !r.contributors.is_empty());
    let changed: Vec<_> = match running.rounds.tiling {
        Some(_) => vec![everything],
        None => with_result.map(|(fragment, _)| running.rounds.layout.range(fragment)).collect(),
    };
    let pool = running.codec.compressor.pool();
    running.replica.apply(round, &mean, &changed, outer_step(&config.sync), pool);
    running.results.arriving.give_back(mean);
    running.replica.follow(&running.rounds.schedule, round);
}

fn mean_of(running: &mut Running, round: Round, results: &[FragmentResult]) -> SparseRanges {
    let Running { results: here, rounds: Rounds { layouts, tiling, .. }, codec, .. } = running;
    let mean = here.arriving.take(layouts, round, results, &mut codec.decoder);
    match tiling {
        Some(tiling) => {
            SparseRanges::whole(tiling.to_flat(&mean.into_whole(layouts.of(round).values as usize)))
        }
        None => mean,
    }
}

/// Returns the mean of all values of a round of common steps.
fn common_mean(running: &mut Running, round: Round, results: &[FragmentResult]) -> Vec<f32> {
    if running.rounds.layouts.is_redundant(round)
        && let Some(own) = running.contributions.redundant.remove(&round)
    {
        let norms = mean_of(running, round, results);
        running.results.arriving.give_back(norms);
        return own;
    }
    let len = running.rounds.layouts.of(round).values as usize;
    mean_of(running, round, results).into_whole(len)
}

/// Returns the sites named in the results of all due fragments.
fn sites_in_all(running: &Running, round: Round, results: &[FragmentResult]) -> Vec<SiteId> {
    let due = running.rounds.layout.fragments().zip(results);
    let mut due = due
        .filter(|(fragment, _)| running.rounds.schedule.is_due(round, *fragment))
        .map(|(_, result)| result);
    let Some(first) = due.next() else { return Vec::new() };
    let rest: Vec<_> = due.collect();
    first.sites().filter(|site| rest.iter().all(|result| result.names(*site))).collect()
}

/// Returns the change of the device's parameters by a round's result. `contributed`: those at the end of the round, whose memory is reused.
fn change_of(
    config: &RunConfig,
    running: &Running,
    round: Round,
    contributed: SparseRanges,
) -> ParameterChange {
    let mut values = contributed;
    let kept = match config.sync.late {
        LateRule::Keep | LateRule::KeepUnsent => {
            running.replica.set_change(&mut values);
            1.0
        }
        LateRule::Mix => {
            // The last round's result is the run's final model.
            let is_last = round.next().0 >= running.rounds.schedule.rounds();
            let kept = if is_last || config.sync.overlap == 0 { 0.0 } else { config.sync.mix };
            running.replica.set_scaled(1.0 - kept, &mut values);
            kept
        }
    };
    ParameterChange { kept, values }
}

/// Lets the change of the local parameters keep what error feedback holds back.
fn keep_unsent(running: &mut Running, round: Round, change: &mut ParameterChange) {
    let Running { contributions, codec, rounds, .. } = running;
    // The last round's result is the run's final model.
    let is_last = round.next().0 >= rounds.schedule.rounds();
    let memories = if is_last { &BTreeMap::new() } else { codec.compressor.memories() };
    contributions.unsent.renew(&mut change.values, memories, &rounds.layout);
}

/// Returns the backlog of error feedback after a round, in the fragments that this member uploads and owns.
fn residual_ratio(running: &Running, round: Round) -> Option<f32> {
    let delta = running.contributions.of_rounds.get(&round)?;
    let due = |fragment: FragmentId| running.rounds.schedule.is_due(round, fragment);
    let memories = running.codec.compressor.memories().iter().filter(|(fragment, _)| due(**fragment));
    let contributed = memories.fold(Waiting::default(), |sum, (fragment, memory)| {
        sum.with(&memory.residual, delta.get(running.rounds.layout.range(*fragment)).unwrap_or_default())
    });
    in_all(contributed, running.codec.reducer.waiting_in(round)).map(|backlog| backlog as f32)
}
