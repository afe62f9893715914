//! The owner's part: what it publishes of the contributions to a fragment.

use std::collections::BTreeMap;

use longhaul_common::config::{ResultForm, RobustRule, SyncConfig};
use longhaul_common::id::{FragmentId, Round};
use longhaul_proto::codec::{CodecSpec, Decoder, EncodeError, Encoder, SpecError};
use longhaul_proto::control::message::{Refusal, RefusalReason};
use longhaul_proto::round::{Contribution, FragmentResult};

use super::chain::{downlink, is_lossless, opening_downlink};
use super::guard::{Excess, Guard};
use super::layouts::Layouts;
use super::masking::Masking;
use super::mean::{add_shares, sound_update};
use super::robust::{add_clipped_mean, set_trimmed_mean};
use super::union::Union;

/// The owner's chain draws nothing at random.
const NO_SEED: u64 = 0;

/// Makes results of the contributions that are sound, and no larger than the group's are.
///
/// Where results are means that are compressed again, what that leaves behind stays in a residual of the owner's, one for each
/// fragment (two-way compression with double error feedback: DoubleSqueeze, Tang et al. 2019): p = residual + mean of the contributions,
/// the result is C(p), residual = p − decode(C(p)).
pub struct Reducer {
    form: ResultForm,
    union: Union,
    /// Whether the opening's results are unions as well.
    opens_with_unions: bool,
    robust: RobustRule,
    trim: u32,
    /// How many were trimmed last: fewer than `trim` where few sites contribute, which is told when it changes.
    trimmed: Option<u32>,
    guard: Guard,
    layouts: Layouts,
    steady: Encoder,
    opening: Encoder,
    decoder: Decoder,
    residuals: BTreeMap<FragmentId, Vec<f32>>,
    /// Whether residuals are of gradients, which cannot be part of the deltas that follow.
    keeps_gradients: bool,
    /// Residuals as they were before the last reduction, which may turn out to be void.
    before: BTreeMap<FragmentId, (Round, Vec<f32>)>,
    scratch: Vec<f32>,
}

/// What an owner makes of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    /// What is published. It names the sites whose contributions are in it, and no others.
    pub result: FragmentResult,
    /// The contributions that are not, in site order.
    pub refused: Vec<Refusal>,
}

impl Reducer {
    /// The reducer of a run.
    ///
    /// # Errors
    /// A combination of selection and format that the codec does not have.
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
            opening: Encoder::new(opening_downlink(config))?,
            decoder: Decoder::default(),
            residuals: BTreeMap::new(),
            keeps_gradients: config.parts_after_the_opening(),
            before: BTreeMap::new(),
            scratch: Vec::new(),
        })
    }

    /// From now on, rounds are these.
    pub fn follow(&mut self, layouts: Layouts) {
        self.layouts = layouts;
    }

    /// Compresses means by this chain from now on, whatever is configured.
    ///
    /// # Errors
    /// A chain that the codec does not have.
    pub fn adapt(&mut self, chain: CodecSpec) -> Result<(), SpecError> {
        self.steady.set_spec(chain)?;
        self.opening.set_spec(chain)
    }

    /// The result of these contributions. What the same round left in the residual before was void.
    ///
    /// # Errors
    /// A mean that is not finite; contributions of which it is made never are.
    pub fn reduce(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: Vec<Contribution>,
    ) -> Result<Reduction, EncodeError> {
        if !self.layouts.schedule().is_opening(round) {
            self.leave_opening();
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

    /// The result of masked contributions, of the values at these positions if not of all: their mean, or nothing where there is no sum. None is
    /// refused, as nothing can be seen of them.
    ///
    /// # Errors
    /// A mean that is not finite, which integers never have.
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
                tracing::warn!(%round, %fragment, %reason, "no sum: all sites carry over what they have contributed");
                self.undo(round, fragment);
                FragmentResult::nothing()
            }
        };
        Ok(Reduction { result, refused: Vec::new() })
    }

    /// Divides contributions into those that go into the result, with their norms, and those that do not. Both are in the order given. Where the
    /// result is the plain mean of all of them, as it is but for bad members, that is in `scratch` when none is refused.
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
        let is_opening = self.layouts.schedule().is_opening(round);
        let verdicts = match self.layouts.exchange_in(round) {
            // A slice of factors is a few rows of a few matrices, whose norms jump as those of a whole fragment do not.
            Some(_) => vec![None; sizes.len()],
            None => self.guard.judge(fragment, is_opening, &sizes),
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

    /// Whether the mean of all contributions is what is published of them, if none is refused.
    fn adds_at_once(&self) -> bool {
        self.robust == RobustRule::None && self.form != ResultForm::Bundle
    }

    /// Puts into `scratch` what becomes of the accepted contributions.
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
                        "too few sites contribute: of each coordinate the median is taken"
                    );
                }
            }
        }
    }

    /// The result with the mean in `scratch`, which is of these contributions.
    fn publish(
        &mut self,
        round: Round,
        fragment: FragmentId,
        contributions: &[Contribution],
    ) -> Result<FragmentResult, EncodeError> {
        let len = self.scratch.len();
        let is_opening = self.layouts.schedule().is_opening(round);
        let encoder = if is_opening { &mut self.opening } else { &mut self.steady };
        let mut body = Vec::new();
        // The two exchanges of low-rank gradients have fragments of unlike lengths, and the device keeps what they leave out.
        let has_no_residual = self.layouts.exchange_in(round).is_some();
        if has_no_residual || is_lossless(encoder.spec()) && !self.residuals.contains_key(&fragment) {
            encoder.encode(NO_SEED, &self.scratch, &mut body)?;
            return Ok(FragmentResult::mean(contributions, body.into()));
        }
        let residual = self.residuals.entry(fragment).or_insert_with(|| vec![0.0; len]);
        match self.before.get_mut(&fragment) {
            Some((of, before)) if *of == round => residual.clone_from(before),
            Some((of, before)) => {
                *of = round;
                before.clone_from(residual);
            }
            None => drop(self.before.insert(fragment, (round, residual.clone()))),
        }
        let is_union = self.form == ResultForm::Union && (!is_opening || self.opens_with_unions);
        if is_union {
            self.union.hold_back(&mut self.scratch, residual);
        }
        let encoded = encoder.encode_with_feedback(NO_SEED, &self.scratch, residual, 1.0, &mut body);
        if is_union {
            self.union.give_back(residual);
        }
        encoded?;
        Ok(FragmentResult::mean(contributions, body.into()))
    }

    /// Drops what the opening has left behind, where what comes after it is of another kind.
    pub fn leave_opening(&mut self) {
        if std::mem::take(&mut self.keeps_gradients) {
            self.residuals.clear();
            self.before.clear();
        }
    }

    /// Puts a residual back to what it was before this round was reduced, if it was.
    fn undo(&mut self, round: Round, fragment: FragmentId) {
        if let Some((of, before)) = self.before.get(&fragment)
            && *of == round
        {
            self.residuals.insert(fragment, before.clone());
        }
    }

    /// Gives a residual away, as somebody else owns the fragment from now on: as it was before the reduction of `void_from` or a later
    /// round.
    pub fn take_residual(&mut self, fragment: FragmentId, void_from: Round) -> Option<Vec<f32>> {
        self.guard.forget(fragment);
        let present = self.residuals.remove(&fragment);
        match self.before.remove(&fragment) {
            Some((of, before)) if of >= void_from => Some(before),
            _ => present,
        }
    }

    /// The residuals that this worker keeps as an owner, by fragment.
    #[must_use]
    pub fn residuals(&self) -> &BTreeMap<FragmentId, Vec<f32>> {
        &self.residuals
    }

    /// Takes residuals over from a checkpoint, in place of all there were; those of a wrong length are left out.
    pub fn restore_residuals(&mut self, mut residuals: BTreeMap<FragmentId, Vec<f32>>) {
        residuals.retain(|fragment, values| values.len() == self.layouts.model().range(*fragment).len());
        self.before.clear();
        self.residuals = residuals;
    }
}

fn total_weight<'a>(contributions: impl Iterator<Item = &'a Contribution>) -> u64 {
    contributions.map(|contribution| u64::from(contribution.weight)).sum()
}

/// What a contribution is of the mean. Exact up to 2²⁴ samples.
fn share(weight: u32, total: u64) -> f32 {
    weight as f32 / total as f32
}

/// Moves values to these positions of `len`, which ascend; zeros are elsewhere.
fn spread(values: &mut Vec<f32>, positions: &[u32], len: usize) {
    values.resize(len, 0.0);
    // From the last on: no value goes below where it is.
    for (from, &to) in positions.iter().enumerate().rev() {
        values.swap(from, to as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::config::{SyncConfig, SyncPreset, ValueFormat};
    use longhaul_common::id::SiteId;
    use longhaul_common::plan::FragmentLayout;
    use longhaul_common::schedule::RoundSchedule;
    use longhaul_proto::codec::Selection;
    use longhaul_proto::round::Content;

    const LAYOUT: FragmentLayout = FragmentLayout { values: 64, fragment_values: 64 };
    const SCHEDULE: RoundSchedule =
        RoundSchedule { opening_rounds: 0, opening_every: 1, every: 1, groups: 1, exchanges: 1, steps: 100 };
    const F0: FragmentId = FragmentId(0);

    fn reducer() -> Reducer {
        let sync = SyncConfig {
            chunk: 64,
            result: ResultForm::Mean,
            result_keep: 8,
            result_values: ValueFormat::Int8,
            opening_keep: 64,
            ..SyncConfig::of(SyncPreset::SparseLocal)
        };
        Reducer::new(&sync, Layouts::new(LAYOUT, None, SCHEDULE)).unwrap()
    }

    /// Two sites with weights 1 and 3, in full precision.
    fn contributions(round: u64) -> (Vec<Contribution>, Vec<f64>) {
        let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
        let mut mean = vec![0.0; 64];
        let contributions = [(0u32, 1u32), (1, 3)].map(|(site, weight)| {
            let values: Vec<f32> =
                (0..64).map(|i| ((i * 37 + round as u32 * 11 + site * 5) % 23) as f32 / 7.0 - 1.5).collect();
            mean.iter_mut().zip(&values).for_each(|(m, v)| *m += f64::from(weight) / 4.0 * f64::from(*v));
            let mut body = Vec::new();
            encoder.encode(0, &values, &mut body).unwrap();
            Contribution { site: SiteId(site), weight, body: body.into() }
        });
        (contributions.into(), mean)
    }

    fn decoded(result: &FragmentResult) -> Vec<f64> {
        let Content::Mean(body) = &result.content else { panic!("it is a mean") };
        let mut values = vec![0.0; 64];
        Decoder::new().decode_add(body, 64, 1.0, &mut values).unwrap();
        values.into_iter().map(f64::from).collect()
    }

    #[test]
    fn all_that_is_published_and_the_owners_residual_make_up_all_means() {
        let mut reducer = reducer();
        let (mut published, mut means) = (vec![0.0; 64], vec![0.0; 64]);
        for round in 0..50 {
            let (contributions, mean) = contributions(round);
            let Reduction { result, refused } = reducer.reduce(Round(round), F0, contributions).unwrap();
            assert_eq!(refused, []);
            assert_eq!(result.sites().collect::<Vec<_>>(), [SiteId(0), SiteId(1)]);
            published.iter_mut().zip(decoded(&result)).for_each(|(sum, value)| *sum += value);
            means.iter_mut().zip(mean).for_each(|(sum, value)| *sum += value);
        }
        let residual = &reducer.residuals()[&F0];
        assert!(residual.iter().any(|rest| rest.abs() > 0.1), "eight of 64 are sent in a round");
        for ((published, mean), rest) in published.iter().zip(&means).zip(residual) {
            assert!((published + f64::from(*rest) - mean).abs() < 1e-4, "{published} + {rest} is not {mean}");
        }
    }

    /// Sites that send values of their own: a result has all of them, rounded, and nothing that was left in the residual before.
    #[test]
    fn a_union_has_what_anybody_sent_as_far_as_there_is_room_and_the_rest_waits() {
        let contribution = |site: u32, values: &[(usize, f32)]| {
            let mut all = vec![0.0; 64];
            values.iter().for_each(|(at, value)| all[*at] = *value);
            let mut body = Vec::new();
            let spec = CodecSpec::new(Selection::TopK { chunk: 64, keep: 4 }, ValueFormat::F32);
            Encoder::new(spec).unwrap().encode(0, &all, &mut body).unwrap();
            Contribution { site: SiteId(site), weight: 1, body: body.into() }
        };
        for (room, values) in [(64, ValueFormat::F32), (64, ValueFormat::Int4), (5, ValueFormat::Int4)] {
            let sync = SyncConfig {
                result: ResultForm::Union,
                result_keep: room,
                result_values: values,
                chunk: 64,
                opening_keep: 64,
                ..SyncConfig::of(SyncPreset::SparseLocal)
            };
            let mut reducer = Reducer::new(&sync, Layouts::new(LAYOUT, None, SCHEDULE)).unwrap();
            let (mut published, mut means) = (vec![0.0; 64], vec![0.0; 64]);
            for round in 0..20_usize {
                let of = |site: usize| {
                    let at = |i: usize| (i * 17 + site * 9 + round * 5) % 64;
                    (0..4).map(|i| (at(i), (at(i) % 7) as f32 + 0.3)).collect::<Vec<_>>()
                };
                let sent = [of(0), of(1)];
                sent.iter().flatten().for_each(|(at, value)| means[*at] += f64::from(*value) / 2.0);
                let both = [0, 1].map(|site| contribution(site as u32, &sent[site]));
                let result = reducer.reduce(Round(round as u64), F0, both.into()).unwrap().result;
                let values = decoded(&result);
                let positions = |at: &usize| values[*at] != 0.0;
                let union: Vec<usize> =
                    (0..64).filter(|at| sent.iter().flatten().any(|(p, _)| p == at)).collect();
                assert!((0..64).filter(positions).all(|at| union.contains(&at)), "round {round}");
                let room = (room as usize).min(union.len());
                assert!((0..64).filter(positions).count() <= room);
                assert!(room < 64 || (0..64).filter(positions).count() == union.len());
                published.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            let residual = &reducer.residuals()[&F0];
            assert_eq!(residual.iter().all(|rest| *rest == 0.0), values == ValueFormat::F32);
            for ((published, mean), rest) in published.iter().zip(&means).zip(residual) {
                assert!(
                    (published + f64::from(*rest) - mean).abs() < 1e-4,
                    "{published} + {rest} is not {mean}"
                );
            }
        }
    }

    #[test]
    fn values_are_spread_to_their_positions() {
        let mut values = vec![1.0, 2.0, 3.0];
        spread(&mut values, &[0, 3, 4], 6);
        assert_eq!(values, [1.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
    }

    #[test]
    fn means_of_low_rank_factors_in_few_bits_leave_nothing_behind() {
        let schedule = RoundSchedule { exchanges: 2, ..SCHEDULE };
        let sync = SyncConfig {
            values: ValueFormat::Bf16,
            result_values: ValueFormat::Bf16,
            ..SyncConfig::of(SyncPreset::Powersgd)
        };
        let mut reducer = Reducer::new(&sync, Layouts::new(LAYOUT, Some([64, 7]), schedule)).unwrap();
        for (round, len) in [(0, 64), (1, 7), (2, 64)] {
            let mut body = Vec::new();
            let values = vec![0.1; len];
            let spec = CodecSpec::new(Selection::All, ValueFormat::F32);
            Encoder::new(spec).unwrap().encode(0, &values, &mut body).unwrap();
            let contribution = Contribution { site: SiteId(0), weight: 1, body: body.into() };
            reducer.reduce(Round(round), F0, vec![contribution]).unwrap();
        }
        assert!(reducer.residuals().is_empty());
    }

    #[test]
    fn what_a_void_reduction_left_behind_does_not_count() {
        let (mut twice, mut once) = (reducer(), reducer());
        for reducer in [&mut twice, &mut once] {
            reducer.reduce(Round(0), F0, contributions(0).0).unwrap();
        }
        let mut alone = contributions(1).0;
        alone.pop();
        twice.reduce(Round(1), F0, alone).unwrap();
        let [again, only] =
            [&mut twice, &mut once].map(|r| r.reduce(Round(1), F0, contributions(1).0).unwrap());
        assert_eq!((again, twice.residuals()), (only, once.residuals()));

        let before = once.before[&F0].1.clone();
        assert_eq!(twice.take_residual(F0, Round(1)), Some(before), "round 1 is void where it goes");
        let after = once.residuals()[&F0].clone();
        assert_eq!(once.take_residual(F0, Round(2)), Some(after));
        assert_eq!(once.take_residual(F0, Round(2)), None);
    }
}
