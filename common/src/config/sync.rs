//! `[sync]`: how sites exchange what they learnt, as parts that go together freely.

use serde::{Deserialize, Serialize};

use super::error::shown;
use super::{Rounding, ValueFormat};
use crate::id::Round;

/// Of the rounds of a warm-up of common steps that adapts, one in so many is measured. The others take less time, as they leave while gradients are computed.
const MEASURED_EVERY: u64 = 4;

/// The strategies, named after their papers. A preset is nothing but a value for each of the other keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncPreset {
    /// A warm-up of common steps, then deltas under its second moment, a part of the model at a time, with as many bits as the link has to
    /// spare, by measurement.
    #[default]
    Auto,
    /// Gradients after each step, averaged before the optimiser runs.
    Dense,
    /// The largest of momentum-corrected gradients, after each step (Deep Gradient Compression, 1712.01887).
    Dgc,
    /// Gradients as products of thin matrices, after each step (PowerSGD, 1905.13727).
    Powersgd,
    /// Signs of momenta after each step, both ways, under a second moment that is frozen after a dense warm-up (1-bit Adam, 2102.02888).
    OnebitAdam,
    /// The largest components of slowly decaying momenta, and the sign of what comes together (DeMo, 2411.19870).
    Demo,
    /// Parameter deltas after H local steps, averaged, Nesterov momentum outside (DiLoCo, 2311.08105).
    Diloco,
    /// DiLoCo, a part of the model at a time, in four bits, mixed into what was trained meanwhile (2501.18512).
    StreamingDiloco,
    /// Parameter deltas after each step: a random mask that all know, top-k, few bits, both ways (CocktailSGD, ICML 2023).
    Cocktail,
    /// Parameter deltas after several local steps, chunked top-k with error feedback (SparseLoCo, 2508.15706).
    SparseLocal,
}

impl SyncPreset {
    /// Every preset.
    pub const ALL: [Self; 10] = [
        Self::Auto,
        Self::Dense,
        Self::Dgc,
        Self::Powersgd,
        Self::OnebitAdam,
        Self::Demo,
        Self::Diloco,
        Self::StreamingDiloco,
        Self::Cocktail,
        Self::SparseLocal,
    ];
}

/// What a worker contributes to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The gradient of a step. All members make the same update of it, so nobody trains by itself.
    Gradient,
    /// The gradient of a step, added up with momentum where it waits to be sent.
    CorrectedGradient,
    /// AdamW's first moment with the gradient of a step mixed in: β₁·m + (1 − β₁)·g.
    Momentum,
    /// What local training has changed since the last round: θ_g − θ.
    Delta,
}

impl Source {
    /// Whether members update their parameters from results alone.
    #[must_use]
    pub fn is_gradient(self) -> bool {
        self != Self::Delta
    }
}

/// Which values are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionRule {
    /// All.
    All,
    /// Of each `chunk`, the `keep` of the largest magnitude.
    TopK,
    /// The largest magnitudes of a fragment, about `keep` for each `chunk` of its values, wherever they are.
    Threshold,
    /// The columns that `[train.sparse_backward]` has computed a gradient of, and all values of what is not a product's weight.
    Columns,
}

/// What is done with values before some are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transform {
    /// Nothing.
    None,
    /// The two-dimensional cosine transform of 64×64 tiles of the matrices.
    Dct,
}

/// In which form owners publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultForm {
    /// The contributions side by side, as they came: nothing is compressed twice, and the result grows with the sites.
    Bundle,
    /// The mean, compressed again; what that leaves behind stays with the owner, for its next result.
    Mean,
    /// The mean at all positions that somebody has sent, in a format of its own: what several sites have sent is there once. Beyond
    /// `result_keep`, and in what rounding leaves behind, as `mean`.
    Union,
}

/// What is done with the mean of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// It is the gradient of one step of the inner optimiser, AdamW.
    Inner,
    /// It is the direction of a step of plain gradient descent.
    Sgd,
    /// Its sign is the direction of a step.
    Sign,
    /// It is AdamW's new first moment, and the second is not changed any more.
    FrozenAdamw,
    /// It is the gradient of one outer step, by SGD with Nesterov momentum: see `outer_learning_rate`, `outer_momentum`.
    Outer,
}

/// What local steps are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InnerRule {
    /// AdamW, each member with moments of its own.
    Adamw,
    /// AdamW under a second moment that is the same on all members and does not change any more: it is learnt in the warm-up, in which
    /// gradients are exchanged after each step. Steps are then linear in the gradients, and local training drifts far less (0/1 Adam:
    /// Lu et al. 2022, 2202.06009).
    FrozenAdamw,
}

/// How an owner that takes the mean keeps the influence of a few contributions small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RobustRule {
    /// Not at all: the mean by samples.
    None,
    /// Who is longer than the median of the round is scaled down to it; every site counts once (centred clipping around zero,
    /// Karimireddy et al. 2021, 2012.10333).
    Clip,
    /// Of each coordinate, the `trim` largest and smallest are left out; every site counts once (Yin et al. 2018, 1803.01498).
    Trim,
}

/// How the members of a site bring their updates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithinSite {
    /// In a ring over TCP, each member adding to what it passes on; where there is none, as `direct`.
    Ring,
    /// Each member sends its update to those who upload it.
    Direct,
    /// Over NCCL, between the GPUs of one machine.
    Nccl,
}

/// How a result meets what was trained while it was on its way (`overlap` > 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LateRule {
    /// θ ← θ + (θ_new − θ at the contribution): the steps since are kept whole.
    Keep,
    /// θ ← α·θ + (1 − α)·θ_new, with `mix` as α (2501.18512).
    Mix,
}

/// Declares `[sync]` twice from one list of keys: as it is written, where every key may be missing, and as it is used.
macro_rules! sync_keys {
    ($(#[$of_preset:meta])* preset: $preset:ty, $( $(#[$attribute:meta])* $key:ident: $type:ty, )*) => {
        /// `[sync]`, with the preset's value for every key that the file does not set.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(from = "SyncKeys")]
        pub struct SyncConfig {
            $(#[$of_preset])*
            pub preset: $preset,
            $( $(#[$attribute])* pub $key: $type, )*
        }

        /// `[sync]` as the file has it.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct SyncKeys {
            preset: $preset,
            $( $key: Option<$type>, )*
        }

        impl From<SyncKeys> for SyncConfig {
            fn from(keys: SyncKeys) -> Self {
                let preset = Self::of(keys.preset);
                let keys = keys.with_followers(&preset);
                let unset = [keys.keep, keys.warmup_keep, keys.result_keep].map(|count| count.is_none());
                let config = Self { preset: keys.preset, $( $key: keys.$key.unwrap_or(preset.$key), )* };
                config.with_fitting_counts(unset)
            }
        }

        impl From<&SyncConfig> for SyncKeys {
            fn from(config: &SyncConfig) -> Self {
                Self { preset: config.preset, $( $key: Some(config.$key), )* }
            }
        }

        impl SyncConfig {
            /// The keys that have another value than they would have if the file did not set them, and that value: neither what the preset has, nor
            /// what follows from the other keys.
            pub(super) fn own_keys(&self) -> Vec<(&'static str, String)> {
                let preset = Self::of(self.preset);
                let mut own = Vec::new();
                $(
                    let without = Self::from(SyncKeys { $key: None, ..SyncKeys::from(self) });
                    if self.$key != preset.$key && self.$key != without.$key {
                        own.push((concat!("sync.", stringify!($key)), shown(&self.$key)));
                    }
                )*
                own
            }
        }
    };
}

sync_keys! {
    /// Where the values of the other keys come from unless they are set.
    preset: SyncPreset,
    /// Steps between rounds (H).
    every: u64,
    /// `adapt`: the most that `every` may become, at the end of the warm-up or later, where links or their round trips are too slow for it. As much as `every`:
    /// `groups` stays as it is too.
    every_max: u64,
    /// The fragments take turns: a round has every so-manieth of them, so that each has one in `every`·`groups` steps.
    groups: u32,
    /// Steps after which a round's result is applied (τ); training goes on in between. At most the steps to the next round.
    overlap: u64,
    /// With gradients and `overlap`: the gradient of a step is taken where the parameters will be when the mean before it is in, as far as
    /// the member's own gradient tells.
    look_ahead: bool,
    /// How a result meets what was trained meanwhile: `keep` or `mix`.
    late: LateRule,
    /// α of `late = "mix"`: the share of what was trained meanwhile.
    mix: f32,
    /// Rounds at the start that follow `warmup_every`, `warmup_keep` and `warmup_values`, with all fragments in each: a young
    /// model moves fast, and its updates are not sparse.
    warmup_rounds: u64,
    /// The share of the run's steps that belongs to the warm-up, unless `warmup_rounds` is longer.
    warmup_share: f64,
    /// Steps between the warm-up's rounds.
    warmup_every: u64,
    /// Values kept of each chunk in the warm-up; all of a chunk means that none is selected.
    warmup_keep: u32,
    /// Number format on the wire in the warm-up.
    warmup_values: ValueFormat,
    /// What is contributed: `gradient`, `corrected-gradient`, `momentum` or `delta`. In the warm-up, `gradient` or `delta`.
    source: Source,
    /// `source = "delta"`: what local steps are made with, `adamw` or `frozen-adamw`. With the latter, the warm-up exchanges gradients.
    inner: InnerRule,
    /// The rank of the products that stand for the gradients of matrices, exchanged in two rounds after each step; 0: gradients as they are.
    rank: u32,
    /// Of each `chunk`, so many values at random positions, the same for all members, go into the selection; all of a chunk: no mask.
    random_keep: u32,
    /// What is done with values before some are selected: `none` or `dct`.
    transform: Transform,
    /// Which values are sent: `all`, `top-k`, `threshold` or `columns`.
    selection: SelectionRule,
    /// Values in a chunk, a power of two.
    chunk: u32,
    /// Values kept of each chunk.
    keep: u32,
    /// Number format on the wire.
    values: ValueFormat,
    /// How values become levels of their format: `nearest` or `stochastic`.
    rounding: Rounding,
    /// `source = "corrected-gradient"`: the momentum (m).
    momentum: f32,
    /// What a round keeps of the residual before it; 0: what is not sent is lost.
    error_decay: f32,
    /// In which form results are published: `bundle`, `mean` or `union`.
    result: ResultForm,
    /// `result = "mean"`: values kept of each chunk of the mean; all of a chunk means that none is selected. `result = "union"`: values of a chunk
    /// at most, of those that somebody has sent.
    result_keep: u32,
    /// `result = "mean"` or `"union"`: its number format.
    result_values: ValueFormat,
    /// A contribution whose norm is more than so many times the median of the last ones is refused by the owner; 0: none is.
    norm_limit: f64,
    /// `result = "mean"` or `"union"`: how the influence of a few contributions is kept small: `none`, `clip` or `trim`.
    robust: RobustRule,
    /// `robust = "trim"`: how many are left out at each end of a coordinate; as many as leave a median where fewer sites contribute.
    trim: u32,
    /// What is done with the mean: `inner`, `sgd`, `sign`, `frozen-adamw` or `outer`. In the warm-up, `inner` or `outer`.
    apply: Application,
    /// `apply = "outer"`: the step size for the mean delta.
    outer_learning_rate: f32,
    /// `apply = "outer"`: Nesterov's momentum (μ); 0 is plain SGD.
    outer_momentum: f32,
    /// Whether the bits of a value follow the link: then they decide which values are sent and in which format, in place of `selection`, `keep`,
    /// `values`, `rounding`, `warmup_keep`, `warmup_values`, `result_keep` and `result_values`, which are refused beside it.
    adapt: bool,
    /// `adapt`: the share of the run's steps, from the first, in which a value has two bits at least, whatever the link: what a young model
    /// learns in one part, the others need soon. At least three times the warm-up, unless it is 0.
    early_share: f64,
    /// `adapt`: the share of the time between a contribution and the step that needs its result that communication may fill.
    target_utilisation: f64,
    /// `adapt`: bits for each value of a round, at least.
    bits_min: f64,
    /// `adapt`: bits for each value of a round, at most.
    bits_max: f64,
    /// `adapt`: of a fragment's changes, those of so many exchanges may wait in error feedback (‖residual‖ over ‖what the last exchange added‖); beyond, bits
    /// rise and training waits for the link. With `groups`, a fragment is exchanged every so many rounds. 0: no bound.
    backlog_max: f64,
    /// How the members of a site bring their updates together: `ring`, `direct` or `nccl`.
    within_site: WithinSite,
    /// Parameters in a fragment, a multiple of `chunk`. Where a worker has more than 10,000 times as many, fragments are so many times larger as leave 10,000.
    fragment_values: u32,
    /// The longest that an owner waits for a late site, in milliseconds, counted from the first contribution.
    deadline_ceiling_ms: u64,
    /// The shortest, in milliseconds.
    deadline_floor_ms: u64,
    /// Between them: the median of past waits and so many median absolute deviations.
    deadline_mads: f64,
}

impl SyncKeys {
    /// Who sets the number format alone means it for the warm-up and the results as well, where the preset has one format for them; and
    /// all of a chunk is still all of it when chunks have another size.
    fn with_followers(mut self, preset: &SyncConfig) -> Self {
        // Who asks for rounds that are far apart means it.
        self.every_max = self.every_max.or(self.every.map(|every| every.max(preset.every_max)));
        if preset.result_keep == preset.chunk {
            self.result_keep = self.result_keep.or(self.chunk);
        }
        if preset.random_keep == preset.chunk {
            self.random_keep = self.random_keep.or(self.chunk);
        }
        if self.selection == Some(SelectionRule::All) {
            // Who wants all values sent wants so from the start.
            self.warmup_keep = self.warmup_keep.or(Some(self.chunk.unwrap_or(preset.chunk)));
        }
        if self.source.is_some_and(Source::is_gradient) && !preset.source.is_gradient() {
            // The preset's warm-up is one of deltas.
            self.warmup_share = self.warmup_share.or(Some(0.0));
        }
        if preset.warmup_keep == preset.chunk {
            self.warmup_keep = self.warmup_keep.or(self.chunk);
        }
        if preset.warmup_values == preset.values {
            self.warmup_values = self.warmup_values.or(self.values);
        }
        if preset.result_values == preset.values {
            self.result_values = self.result_values.or(self.values);
        }
        self
    }
}

impl Default for SyncConfig {
    fn default() -> Self {
        Self::of(SyncPreset::default())
    }
}

impl SyncConfig {
    /// A preset's count that nothing reads must not stand in the way of smaller chunks. `unset`: which of `keep`, `warmup_keep` and `result_keep`
    /// nobody has set.
    fn with_fitting_counts(mut self, unset: [bool; 3]) -> Self {
        let read = [self.reads_keep(), self.reads_warmup_keep(), self.reads_result_keep()];
        let counts = [&mut self.keep, &mut self.warmup_keep, &mut self.result_keep];
        for ((count, is_unset), is_read) in counts.into_iter().zip(unset).zip(read) {
            if is_unset && !is_read {
                *count = self.chunk.min(*count);
            }
        }
        self
    }

    /// Whether the warm-up sends some of all values: one of common steps sends all.
    #[must_use]
    pub fn warmup_selects(&self) -> bool {
        self.has_warmup() && !self.opens_with_gradients() && self.warmup_keep < self.chunk
    }

    /// Whether what selection or rounding leaves behind is kept for the next contribution.
    #[must_use]
    pub fn has_residual(&self) -> bool {
        self.error_decay > 0.0
    }

    /// Rounds in which the steps of one round are exchanged, after the warm-up.
    #[must_use]
    pub fn exchanges(&self) -> u32 {
        if self.rank > 0 { 2 } else { 1 }
    }

    /// Whether there is a warm-up.
    #[must_use]
    pub fn has_warmup(&self) -> bool {
        self.warmup_rounds > 0 || self.warmup_share > 0.0
    }

    /// What a worker contributes to a round: in the warm-up, what all optimisers begin with.
    #[must_use]
    pub fn source_in(&self, is_warmup: bool) -> Source {
        if is_warmup && self.opens_with_gradients() { Source::Gradient } else { self.source }
    }

    /// Whether parts of a contribution leave while the rest is computed: the device waits for the result (where it does not, there is time enough, and the round
    /// before is still on its way), nothing is done to the contribution as a whole, and nobody measures what it takes.
    #[must_use]
    pub fn streams_in(&self, round: Round, is_warmup: bool) -> bool {
        let is_by_value = self.transform == Transform::None && (is_warmup || self.rank == 0);
        let waits = is_warmup || self.overlap == 0;
        self.source_in(is_warmup) == Source::Gradient
            && self.selection != SelectionRule::Columns
            && waits
            && is_by_value
            && !self.measures(round, is_warmup)
    }

    /// Whether the controller goes by what this round takes, from the end of a contribution to its result. In a warm-up some rounds are enough to know the link.
    #[must_use]
    pub fn measures(&self, round: Round, is_warmup: bool) -> bool {
        self.adapt && (!is_warmup || round.0.is_multiple_of(self.measured_every()))
    }

    /// One round in so many of a warm-up is measured, and is contributed as a whole where others may not be; 1: they are all alike.
    #[must_use]
    pub fn measured_every(&self) -> u64 {
        if self.adapt && self.opens_with_gradients() { MEASURED_EVERY } else { 1 }
    }

    /// τ when rounds are so many steps apart: a result that may take until the next contribution may do so whatever the steps between.
    #[must_use]
    pub fn overlap_at(&self, every: u64) -> u64 {
        if self.overlap == self.every { every } else { self.overlap }
    }

    /// Whether all members make the same steps in the warm-up.
    #[must_use]
    pub fn opens_with_gradients(&self) -> bool {
        self.source.is_gradient() || self.inner == InnerRule::FrozenAdamw
    }

    /// Whether members go apart after a warm-up in which all made the same steps.
    #[must_use]
    pub fn parts_after_the_warmup(&self) -> bool {
        self.opens_with_gradients() && !self.source.is_gradient()
    }

    /// Whether what a warm-up leaves in error feedback is of another kind than what is contributed after it, so that it cannot be part of that.
    #[must_use]
    pub fn changes_kind_after_the_warmup(&self) -> bool {
        self.opens_with_gradients() && matches!(self.source, Source::Momentum | Source::Delta)
    }

    /// What is done with the mean of a round.
    #[must_use]
    pub fn application_in(&self, is_warmup: bool) -> Application {
        if is_warmup && self.opens_with_gradients() { Application::Inner } else { self.apply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_leave_in_parts_where_their_mean_is_waited_for_and_nobody_measures() {
        let rounds = |preset, is_warmup| {
            let sync = SyncConfig::of(preset);
            (0..16).filter(|round| sync.streams_in(Round(*round), is_warmup)).collect::<Vec<_>>()
        };
        let all: Vec<u64> = (0..16).collect();
        assert_eq!(rounds(SyncPreset::Auto, true), [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]);
        assert_eq!(rounds(SyncPreset::Dense, false), all);
        // A warm-up of gradients, then low rank, and signs of momenta.
        assert_eq!(rounds(SyncPreset::Powersgd, true), all);
        for preset in [SyncPreset::Auto, SyncPreset::Powersgd, SyncPreset::OnebitAdam, SyncPreset::Diloco] {
            assert_eq!(rounds(preset, false), [0; 0], "{preset:?}");
        }
        // Gradients of an adaptive run are measured all the time once the warm-up is over.
        let dense = SyncConfig { adapt: true, ..SyncConfig::of(SyncPreset::Dense) };
        assert!(!dense.streams_in(Round(1), false));
    }
}
