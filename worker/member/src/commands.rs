//! Execution of the round protocol's commands.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_proto::control::message::ToCoordinator;
use longhaul_proto::little_endian::of_f32;
use longhaul_proto::round::{Command, Event, FrameHeader, FrameKind};

use super::adaptation::{apply_chain, bits_in};
use super::layouts::Layouts;
use super::running::{Running, Stage};
use super::synchroniser::{Outcome, Synchroniser};
use crate::activity::Activity;
use crate::message::PutBack;
use crate::reduce::reducer::Reduction;
use crate::sparse_ranges::SparseRanges;

impl Synchroniser {
    /// Executes all commands and their consequences, and advances the device.
    pub(super) fn carry_out(&mut self) -> Result<()> {
        loop {
            self.advance()?;
            let Stage::Running(running) = &mut self.stage else { return Ok(()) };
            let Some(command) = running.next_command(&*self.outside) else { return self.ask_site() };
            self.execute(command)?;
        }
    }

    fn execute(&mut self, command: Command) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        match command {
            Command::SendLocal { to, header } => {
                if !running.site.withholds(to, header) {
                    self.send_local(to, header);
                }
            }
            Command::Send { to, header, body, hash } => {
                let FrameHeader { kind, round, fragment, .. } = header;
                tracing::trace!(?kind, %round, %fragment, bytes = body.len(), "a frame leaves");
                self.count_dense_equivalent(to, header);
                self.outside.send(to, header, body, hash);
            }
            Command::Compress { generation, round, fragment, locals } => {
                self.compress_side_by_side(generation, round, (fragment, locals))?;
            }
            Command::Reduce { generation, round, fragment, contributions } => {
                let reducing = self.outside.begin_coding(Activity::Reduce { round, fragment });
                let reduced = match &running.codec.masking {
                    Some(masking) => {
                        let positions = running.codec.compressor.public_positions(round, fragment);
                        let positions = positions.as_deref();
                        running.codec.reducer.reduce_masked(
                            round,
                            fragment,
                            &contributions,
                            masking,
                            positions,
                        )
                    }
                    None => running.codec.reducer.reduce(round, fragment, contributions),
                };
                drop(reducing);
                let Reduction { result, refused } =
                    reduced.with_context(|| format!("take the mean of {fragment} in {round}"))?;
                let now = self.outside.now();
                refused.into_iter().for_each(|refusal| running.results.refusals.note(now, refusal));
                self.feed(Event::Reduced { generation, round, fragment, result });
            }
            Command::Retract { round, fragment } => running.codec.compressor.retract(round, fragment),
            Command::CarryOver { round, fragment } => carry_over(running, round, fragment),
            Command::MoveResidual { fragment } => {
                let members = running.membership.as_ref().map_or(1, |m| m.members_of(self.site).count());
                if let Some(residual) = running.codec.compressor.take_residual(fragment) {
                    carry(running, fragment, &residual, members as f32);
                }
                if let Some(residual) = running.codec.compressor.take_columns(fragment) {
                    running.contributions.columns.carry(fragment, residual, members as f32);
                }
            }
            Command::MoveOwnerResidual { fragment, void_from } => {
                if let Some(residual) = running.codec.reducer.take_residual(fragment, void_from) {
                    let members = running.membership.as_ref().map_or(1, |m| m.members().len());
                    carry(running, fragment, &residual, members as f32);
                }
            }
            Command::Pull { round, fragment, hash, from } => {
                self.outside.pull(from, round, fragment, hash);
            }
            Command::ResultHere { round, fragment, result } => {
                let _decoding = self.outside.begin_coding(Activity::Decode { round, fragment });
                let Running { results, rounds, codec, .. } = &mut **running;
                results.arriving.add(&rounds.layouts, round, fragment, &result, &mut codec.decoder);
            }
            Command::RoundComplete { round, results } => {
                tracing::debug!(%round, "all results are here");
                let (now, round_trip) = (self.outside.now(), self.outside.round_trip());
                if let Some(adaptation) = &mut running.codec.adaptation
                    && let bits = bits_in(&results, running.rounds.layouts.of(round))
                    && let Some(chain) = adaptation.completed(round, bits, now, round_trip)
                {
                    apply_chain(running, chain)?;
                }
                running.codec.reducer.completed(round);
                running.codec.compressor.decided(round);
                running.results.completed.push_back((round, results));
            }
            Command::Release { round } => {
                let held = running.contributions.of_rounds.split_off(&round.next());
                let released = std::mem::replace(&mut running.contributions.of_rounds, held);
                if let Some((_, contribution)) = released.into_iter().next_back() {
                    running.contributions.memory = contribution.into_memory();
                }
                running.contributions.columns.release(round);
                running.contributions.repeated = running.contributions.repeated.split_off(&round.next());
                running.contributions.redundant = running.contributions.redundant.split_off(&round.next());
                running.contributions.finished.take_if(|finished| finished.round <= round);
            }
            Command::ReportSettled(settled) => self.report(ToCoordinator::Settled(settled)),
            Command::Lost { round, fragment } => {
                let reason = format!("no member returned the result of {fragment} in {round}");
                self.outcome = Some(match self.recovery.came_after {
                    Some(took) => Outcome::TooLate(reason, took),
                    None => Outcome::Rejoin(reason),
                });
            }
            Command::Accuse { worker, violation } => {
                tracing::warn!(%worker, %violation, "a member broke the protocol");
            }
        }
        Ok(())
    }

    /// Sends this member's slice of a fragment to its uploader.
    pub(super) fn send_local(&self, to: WorkerId, header: FrameHeader) {
        let Stage::Running(running) = &self.stage else { return };
        let (round, fragment) = (header.round, header.fragment);
        let body = match running.contributions.columns.frame_of(round, fragment) {
            Ok(frame) => frame.unwrap_or_else(|| local_body(running, round, fragment)),
            Err(error) => {
                // The uploader leaves out an unreadable body.
                tracing::warn!(%round, %fragment, "{error:#}");
                Bytes::new()
            }
        };
        self.outside.send(to, header, body, None);
    }

    /// Counts the bytes of a dense f32 frame to another site in place of this one.
    fn count_dense_equivalent(&self, to: WorkerId, header: FrameHeader) {
        let Stage::Running(running) = &self.stage else { return };
        let to_site = running.membership.as_ref().and_then(|m| m.member(to)).map(|member| member.site);
        if to_site.is_some_and(|site| site != self.site) && header.kind != FrameKind::Local {
            // Factors have no fragments of the model: in dense runs, a step's first exchange sends the bytes of the second as well.
            if running.rounds.layouts.exchange_in(header.round) != Some(1) {
                self.outside.dense_equivalent(running.rounds.layout.range(header.fragment).len() as u64 * 4);
            }
        }
    }
}

/// Returns a member's slice as a frame body: f32, little-endian; empty without a contribution to the round.
fn local_body(running: &Running, round: Round, fragment: FragmentId) -> Bytes {
    Bytes::copy_from_slice(of_f32(slice_of(
        &running.contributions.of_rounds,
        &running.rounds.layouts,
        round,
        fragment,
    )))
}

/// Returns this member's slice of a fragment in a round; empty without a contribution, as without samples.
pub(super) fn slice_of<'a>(
    contributed: &'a BTreeMap<Round, SparseRanges>,
    layouts: &Layouts,
    round: Round,
    fragment: FragmentId,
) -> &'a [f32] {
    let range = layouts.of(round).range(fragment);
    contributed.get(&round).and_then(|values| values.get(range)).unwrap_or_default()
}

fn carry_over(running: &mut Running, round: Round, fragment: FragmentId) {
    if running.rounds.layouts.is_redundant(round) {
        // Everybody has applied all of it.
        return;
    }
    running.contributions.columns.carry_over(round, fragment);
    let mut values =
        slice_of(&running.contributions.of_rounds, &running.rounds.layouts, round, fragment).to_vec();
    if values.is_empty() {
        return;
    }
    // Most of a momentum recurs in the next one and would count twice.
    let range = running.rounds.layouts.of(round).range(fragment);
    if let Some(repeated) =
        running.contributions.repeated.get(&round).and_then(|repeated| repeated.get(range))
    {
        values.iter_mut().zip(repeated).for_each(|(value, repeated)| *value -= repeated);
    }
    if running.rounds.layouts.has_exchanges() {
        let exchange = running.rounds.layouts.exchange_in(round);
        let start = running.rounds.layouts.of(round).range(fragment).start;
        running.device.put_back.push(PutBack { exchange, start, values });
    } else {
        carry(running, fragment, &values, 1.0);
    }
}

/// Adds `factor` times an unsent update to this member's next contribution.
///
/// A member's residual counts for its site, an owner's for all, a local update for one member: hence the factor. Members train on equal shares of a divisible
/// batch; otherwise the factor is off by one sample in a share.
fn carry(running: &mut Running, fragment: FragmentId, rest: &[f32], factor: f32) {
    let range = running.rounds.layout.range(fragment);
    if running.rounds.layouts.has_exchanges() {
        let values = rest.iter().map(|rest| factor * rest).collect();
        running.device.put_back.push(PutBack { exchange: None, start: range.start, values });
        return;
    }
    let carry =
        running.contributions.carry.get_or_insert_with(|| vec![0.0; running.rounds.layout.values as usize]);
    carry[range].iter_mut().zip(rest).for_each(|(carry, rest)| *carry += factor * rest);
}
