//! The owner's reduction of the contributions to a fragment.

use std::collections::BTreeMap;

use bytes::Bytes;
use longhaul_common::config::{ResultForm, RobustRule, SyncConfig};
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::chain::{downlink, warmup_downlink};
use longhaul_proto::codec::{CodecSpec, Decoder, EncodeError, Encoder, SpecError};
use longhaul_proto::control::message::{Refusal, RefusalReason};
use longhaul_proto::round::{Contribution, FragmentResult};

use crate::adapt::backlog::Waiting;
use crate::layouts::Layouts;
use crate::masks::Masking;
use crate::reduce::backups::Backups;
use crate::reduce::guard::{Excess, Guard};
use crate::reduce::mean::{add_shares, sound_update};
use crate::reduce::robust::{add_clipped_mean, set_trimmed_mean};
use crate::reduce::union::Union;

/// The owner's chain draws nothing at random.
const NO_SEED: u64 = 0;

/// Makes results of the valid contributions, except those that are too large for the group.
///
/// If means are compressed again, the remainder stays in the owner's residual, one per fragment (two-way compression with double error feedback:
/// DoubleSqueeze, Tang et al. 2019): p = residual + mean of the contributions, the result is C(p), residual = p − decode(C(p)).
pub struct Reducer {
    form: ResultForm,
    union: Union,
    /// Whether the warm-up's results are unions as well.
    opens_with_unions: bool,
    robust: RobustRule,
    trim: u32,
    /// Last number of trimmed contributions: fewer than `trim` if few sites contribute. Changes are logged.
    trimmed: Option<u32>,
    guard: Guard,
    layouts: Layouts,
    steady: Encoder,
    warmup: Encoder,
    decoder: Decoder,
    kept: Residuals,
    scratch: Vec<f32>,
    /// The encoded mean under construction.
    frame: Vec<u8>,
}

/// Residuals of means, by fragment.
#[derive(Default)]
struct Residuals {
    residuals: BTreeMap<FragmentId, Vec<f32>>,
    /// Whether they are of gradients, which are no part of the following deltas.
    keeps_gradients: bool,
    /// Residuals from before reductions that may become void.
    before: BTreeMap<FragmentId, Backups>,
    /// Buffers of earlier such residuals, for the next ones.
    spare: Vec<Vec<f32>>,
    /// Rounds before this one are complete, and never void.
    settled: Round,
    /// Each fragment's last addition to its residual, and the residual after it.
    waiting: BTreeMap<FragmentId, (Round, Waiting)>,
}

/// An owner's reduction of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    /// Published result. It names exactly the sites whose contributions are in it.
    pub result: FragmentResult,
    /// Refused contributions, in site order.
    pub refused: Vec<Refusal>,
}

impl Reducer {
    /// Creates the reducer of a run.
    ///
    /// # Errors
    /// The codec lacks this combination of selection and format.
    pub fn new(config: &SyncConfig, layouts: Layouts) -> Result<Self, SpecError> {
        Ok(Self {
            form: config.result,
            union: Union::new(config.chunk, config.result_keep),
            opens_with_unions: !config.opens_with_gradients(),
            robust: config.robust,
            trim: config.trim,
            trimmed: None,
            guard: Guard::new(config.norm_limit),
            layouts,
            steady: Encoder::new(downlink(config))?,
            warmup: Encoder::new(warmup_downlink(config))?,
            decoder: Decoder::default(),
            kept: Residuals {
                keeps_gradients: config.changes_kind_after_the_warmup(),
                ..Residuals::default()
            },
            scratch: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Switches to other layouts of rounds.
    pub fn follow(&mut self, layouts: Layouts) {
        self.layouts = layouts;
    }

    /// Replaces the configured chains of means by this one.
    ///
    /// # Errors
    /// The codec lacks this chain.
    pub fn adapt(&mut self, chain: CodecSpec) -> Result<(), SpecError> {
        self.steady.set_spec(chain)?;
        self.warmup.set_spec(chain)
    }

    /// Returns the result of these contributions. An earlier reduction of the same round is void.
    ///
    /// # Errors
    /// The mean is not finite, although all contributions are.
    pub fn reduce(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: Vec<Contribution>,
    ) -> Result<Reduction, EncodeError> {
        if !self.layouts.schedule().is_warmup(round) {
            self.leave_warmup();
        }
        let (accepted, refused) = self.sift(round, fragment, contributions);
        let result = match self.form {
            _ if accepted.is_empty() => {
                self.undo(round, fragment);
                FragmentResult::nothing()
            }
            ResultForm::Bundle => {
                FragmentResult::bundle(accepted.into_iter().map(|(_, contribution)| contribution).collect())
            }
            ResultForm::Mean | ResultForm::Union => {
                if !refused.is_empty() || !self.adds_at_once() {
                    self.take_mean(round, fragment, &accepted);
                }
                let contributions: Vec<_> =
                    accepted.into_iter().map(|(_, contribution)| contribution).collect();
                self.publish(round, fragment, &contributions)?
            }
        };
        Ok(Reduction { result, refused })
    }

    /// Returns the result of masked contributions, for the values at these positions or all: their mean, or nothing without a sum. None is refused, because
    /// their content is hidden.
    ///
    /// # Errors
    /// The mean is not finite, which cannot happen with integers.
    pub fn reduce_masked(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: &[Contribution],
        masking: &Masking,
        positions: Option<&[u32]>,
    ) -> Result<Reduction, EncodeError> {
        let len = self.layouts.of(round).range(fragment).len();
        self.scratch.clear();
        self.scratch.resize(positions.map_or(len, <[u32]>::len), 0.0);
        let steps = self.layouts.schedule().steps_of(round).count() as u64;
        let result = match masking.open(round, steps, contributions, &mut self.scratch) {
            Ok(()) => {
                if let Some(positions) = positions {
                    spread(&mut self.scratch, positions, len);
                }
                self.publish(round, fragment, contributions)?
            }
            Err(reason) => {
                tracing::warn!(%round, %fragment, %reason, "no sum: all sites carry over their contributions");
                self.undo(round, fragment);
                FragmentResult::nothing()
            }
        };
        Ok(Reduction { result, refused: Vec::new() })
    }

    /// Separates accepted contributions, with their norms, from refused ones, in the given order. If the result is their plain mean and none is refused, it
    /// is in `scratch` afterwards.
    fn sift(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: Vec<Contribution>,
    ) -> (Vec<(f64, Contribution)>, Vec<Refusal>) {
        let len = self.layouts.of(round).range(fragment).len();
        let (mut sound, mut refused) = (Vec::new(), Vec::new());
        let refusal = |site, reason| Refusal { site, round, fragment, reason };
        let total = total_weight(contributions.iter());
        let adds = self.adds_at_once();
        if adds {
            self.scratch.clear();
            self.scratch.resize(len, 0.0);
        }
        for contribution in contributions {
            match sound_update(&contribution.body, len, &mut self.decoder) {
                Ok((update, norm)) => {
                    if adds {
                        update.add_scaled_to(share(contribution.weight, total), &mut self.scratch);
                    }
                    sound.push((norm, contribution));
                }
                Err(reason) => refused.push(refusal(contribution.site, reason)),
            }
        }
        let sizes: Vec<f64> = sound.iter().map(|(norm, _)| norm / (len.max(1) as f64).sqrt()).collect();
        let is_warmup = self.layouts.schedule().is_warmup(round);
        let verdicts = match self.layouts.exchange_in(round) {
            // A slice of factors is a few rows of a few matrices, whose norms jump more than a whole fragment's.
            Some(_) => vec![None; sizes.len()],
            None => self.guard.judge(fragment, is_warmup, &sizes),
        };
        let mut accepted = Vec::with_capacity(sound.len());
        for ((norm, contribution), verdict) in sound.into_iter().zip(verdicts) {
            match verdict {
                None => accepted.push((norm, contribution)),
                Some(Excess { times, of }) => {
                    let reason = RefusalReason::Norm { times: times as f32, of };
                    refused.push(refusal(contribution.site, reason));
                }
            }
        }
        refused.sort_by_key(|refusal| refusal.site);
        (accepted, refused)
    }

    /// Reports whether the mean of all contributions is published if none is refused.
    fn adds_at_once(&self) -> bool {
        self.robust == RobustRule::None && self.form != ResultForm::Bundle
    }

    /// Puts the mean of the accepted contributions into `scratch`.
    fn take_mean(&mut self, round: Round, fragment: FragmentId, accepted: &[(f64, Contribution)]) {
        let Self { layouts, decoder, scratch, .. } = self;
        scratch.clear();
        scratch.resize(layouts.of(round).range(fragment).len(), 0.0);
        match self.robust {
            RobustRule::None => {
                let total = total_weight(accepted.iter().map(|(_, contribution)| contribution));
                let shares: Vec<_> =
                    accepted.iter().map(|(_, c)| (share(c.weight, total), &c.body)).collect();
                add_shares(&shares, decoder, scratch);
            }
            RobustRule::Clip => {
                let updates: Vec<_> = accepted.iter().map(|(norm, c)| (*norm, &c.body)).collect();
                add_clipped_mean(&updates, decoder, scratch);
            }
            RobustRule::Trim => {
                let updates: Vec<_> = accepted.iter().map(|(_, c)| &c.body).collect();
                let trimmed = set_trimmed_mean(&updates, self.trim, decoder, scratch);
                if self.trimmed.replace(trimmed) != Some(trimmed) && trimmed < self.trim {
                    tracing::warn!(
                        sites = accepted.len(),
                        trimmed,
                        wanted = self.trim,
                        "too few sites contribute for trimming: the median of each coordinate is used"
                    );
                }
            }
        }
    }

    /// Returns the result with the mean in `scratch`, which is of these contributions.
    fn publish(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: &[Contribution],
    ) -> Result<FragmentResult, EncodeError> {
        let len = self.scratch.len();
        let is_warmup = self.layouts.schedule().is_warmup(round);
        let encoder = if is_warmup { &mut self.warmup } else { &mut self.steady };
        let frame = &mut self.frame;
        frame.clear();
        // The two exchanges of low-rank gradients have fragments of unlike lengths, and the device keeps their residual.
        let has_no_residual = self.layouts.exchange_in(round).is_some();
        if has_no_residual || encoder.spec().is_lossless() && !self.kept.residuals.contains_key(&fragment) {
            encoder.encode(NO_SEED, &self.scratch, frame)?;
            return Ok(FragmentResult::mean(contributions, Bytes::copy_from_slice(frame)));
        }
        let Residuals { residuals, before, spare, settled, waiting, .. } = &mut self.kept;
        let residual = residuals.entry(fragment).or_insert_with(|| vec![0.0; len]);
        let before = before.entry(fragment).or_default().reduce(round, *settled, residual, spare);
        let is_union = self.form == ResultForm::Union && (!is_warmup || self.opens_with_unions);
        let added = Waiting::default().with(&[], &self.scratch);
        let encoded = if is_union {
            residual.copy_from_slice(before);
            self.union.hold_back(&mut self.scratch, residual);
            let encoded = encoder.encode_with_feedback(NO_SEED, &self.scratch, residual, 1.0, frame);
            self.union.give_back(residual);
            encoded
        } else {
            encoder.encode_with_feedback_from(NO_SEED, &self.scratch, before, 1.0, residual, frame)
        };
        if let Err(error) = encoded {
            self.undo(round, fragment);
            return Err(error);
        }
        waiting.insert(fragment, (round, added.with(residual, &[])));
        Ok(FragmentResult::mean(contributions, Bytes::copy_from_slice(frame)))
    }

    /// Drops the warm-up's residuals if the next phase exchanges other quantities.
    pub fn leave_warmup(&mut self) {
        if std::mem::take(&mut self.kept.keeps_gradients) {
            self.kept.residuals.clear();
            self.kept.before.clear();
            self.kept.spare.clear();
            self.kept.waiting.clear();
        }
    }

    /// Notes that all results of a round are here.
    pub fn completed(&mut self, round: Round) {
        self.kept.settled = self.kept.settled.max(round.next());
    }

    /// Notes that this worker's device has applied a round, whose results are here: no checkpoint needs the residuals before it or an earlier one.
    pub fn applied(&mut self, round: Round) {
        let Residuals { before, spare, settled, .. } = &mut self.kept;
        let over = round.next().min(*settled);
        before.values_mut().for_each(|backups| backups.forget_before(over, spare));
    }

    /// Returns the backlog in fragments that this worker reduced last in this round.
    #[must_use]
    pub fn waiting_in(&self, round: Round) -> Waiting {
        let of_round = self.kept.waiting.values().filter(|(of, _)| *of == round);
        of_round.fold(Waiting::default(), |sum, (_, waiting)| sum.plus(*waiting))
    }

    /// Restores a residual to its state before this or a later reduced round, if any.
    fn undo(&mut self, round: Round, fragment: FragmentId) {
        if let Some(before) = self.kept.before.get_mut(&fragment).and_then(|backups| backups.take_from(round))
        {
            self.kept.waiting.remove(&fragment);
            self.kept.residuals.insert(fragment, before);
        }
    }

    /// Hands over a residual to the fragment's next owner, from before the reduction of `void_from` or a later round.
    pub fn take_residual(&mut self, fragment: FragmentId, void_from: Round) -> Option<Vec<f32>> {
        self.guard.forget(fragment);
        self.kept.waiting.remove(&fragment);
        let present = self.kept.residuals.remove(&fragment);
        let before = self.kept.before.remove(&fragment).and_then(|mut backups| backups.take_from(void_from));
        before.or(present)
    }

    /// Returns this owner's residuals, by fragment.
    #[cfg(test)]
    pub fn residuals(&self) -> &BTreeMap<FragmentId, Vec<f32>> {
        &self.kept.residuals
    }

    /// Returns this owner's residuals, by fragment, from before a round: it may already be reduced here while this worker's own device is one round behind.
    #[must_use]
    pub fn residuals_at(&self, next_round: Round) -> BTreeMap<FragmentId, Vec<f32>> {
        let at = |(fragment, residual): (&FragmentId, &Vec<f32>)| {
            let before = self.kept.before.get(fragment).and_then(|backups| backups.before(next_round));
            (*fragment, before.unwrap_or(residual).clone())
        };
        self.kept.residuals.iter().map(at).collect()
    }

    /// Replaces all residuals by those of a checkpoint; those of a wrong length are left out.
    pub fn restore_residuals(&mut self, mut residuals: BTreeMap<FragmentId, Vec<f32>>) {
        residuals.retain(|fragment, values| values.len() == self.layouts.model().range(*fragment).len());
        self.kept.before.clear();
        self.kept.residuals = residuals;
    }
}

fn total_weight<'a>(contributions: impl Iterator<Item = &'a Contribution>) -> u64 {
    contributions.map(|contribution| u64::from(contribution.weight)).sum()
}

/// Returns a contribution's share of the mean. Exact up to 2²⁴ samples.
fn share(weight: u32, total: u64) -> f32 {
    weight as f32 / total as f32
}

/// Moves values to these ascending positions of `len`, with zeros elsewhere.
fn spread(values: &mut Vec<f32>, positions: &[u32], len: usize) {
    values.resize(len, 0.0);
    // From the last on: no value moves below its place.
    for (from, &to) in positions.iter().enumerate().rev() {
        values.swap(from, to as usize);
    }
}

#[cfg(test)]
mod tests;
