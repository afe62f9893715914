//! `[sync]`: the exchange between sites, as freely combinable parts.

mod kinds;

use serde::{Deserialize, Serialize};

pub use self::kinds::{
    Application, InnerRule, LateRule, Redundancy, ResultForm, RobustRule, SelectionRule, Source, SyncPreset,
    Transform, WithinSite,
};

use super::error::shown;
use super::{Rounding, ValueFormat};
use crate::id::Round;

/// In an adaptive warm-up of common steps, one round in this many is measured. The others take less time, as
/// they leave while gradients are computed.
const MEASURED_EVERY: u64 = 4;

/// Declares `[sync]` twice from one list of keys: as written, with every key optional, and as used.
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

        /// `[sync]` as in the file.
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
                let is_open = keys.result.is_none();
                let config = Self { preset: keys.preset, $( $key: keys.$key.unwrap_or(preset.$key), )* };
                config.with_fitting_result(is_open).with_fitting_counts(unset)
            }
        }

        impl From<&SyncConfig> for SyncKeys {
            fn from(config: &SyncConfig) -> Self {
                Self { preset: config.preset, $( $key: Some(config.$key), )* }
            }
        }

        impl SyncConfig {
            /// Returns the keys, with values, that differ from the preset and from values derived from other
            /// keys.
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
    /// Values of the keys that are not set.
    preset: SyncPreset,
    /// Steps between rounds (H).
    every: u64,
    /// `adapt`: maximum of `every` after the warm-up, for slow links or long round trips. If equal to `every`, `groups` and `overlap` stay fixed too.
    every_max: u64,
    /// Groups of fragments that take turns, one per round; more than 5 only with four fragments each. Each is exchanged every `every`·`groups` steps. `adapt`: at most, or more where rounds are closer.
    groups: u32,
    /// Steps until a round's result is applied (τ); training continues meanwhile. At most `every`. `adapt`: where a slow link needs all the time between rounds, these are `overlap` steps apart, or as few more as it takes, and results are as late.
    overlap: u64,
    /// Gradients with `overlap`: take each gradient at the parameters expected after the pending mean, estimated from the member's own gradient.
    look_ahead: bool,
    /// Merge of a result with the steps since its contribution.
    late: LateRule,
    /// `late = "mix"`: α, the weight of local parameters.
    mix: f32,
    /// Initial rounds with the `warmup_…` keys and all fragments.
    warmup_rounds: u64,
    /// Warm-up as a share of the run's steps, unless `warmup_rounds` is longer.
    warmup_share: f64,
    /// From a pretrained model: most of the run's steps for `warmup_rounds`, but 50 rounds at least; 1: no limit.
    warmup_share_max: f64,
    /// Steps between warm-up rounds.
    warmup_every: u64,
    /// A warm-up of gradients without links: each member computes the gradient of the whole batch, and none is sent. A step takes as many times longer as there are members,
    /// which is less than an exchange over a slow link; two members end with a lower loss for it over any link. For equal machines: others drift apart by rounding, and
    /// must fetch the state at the end. Workers that join wait for its end. `auto` decides by the measurements of `parallel.plan = "auto"`; without them it is `never`.
    warmup_redundant: Redundancy,
    /// Values kept per chunk in the warm-up; `chunk`: no selection.
    warmup_keep: u32,
    /// Wire format in the warm-up.
    warmup_values: ValueFormat,
    /// Contribution. In the warm-up, `gradient` or `delta`.
    source: Source,
    /// `source = "delta"`: optimiser of local steps. With `frozen-adamw`, the warm-up exchanges gradients.
    inner: InnerRule,
    /// Rank of the factors that replace matrix gradients, exchanged in two rounds per step; 0: plain gradients.
    rank: u32,
    /// Candidate values per chunk, at random positions common to all members; `chunk`: no mask.
    random_keep: u32,
    /// Transform before selection.
    transform: Transform,
    /// Values sent.
    selection: SelectionRule,
    /// Values per chunk, a power of two.
    chunk: u32,
    /// Values kept per chunk.
    keep: u32,
    /// Wire format.
    values: ValueFormat,
    /// Rounding to levels of the format.
    rounding: Rounding,
    /// `source = "corrected-gradient"`: momentum (m).
    momentum: f32,
    /// Error feedback: share of the residual kept per round; 0: unsent values are lost.
    error_decay: f32,
    /// Form of published results.
    result: ResultForm,
    /// `mean`: values kept per chunk; `chunk`: no selection. `union`: maximum values per chunk, also in the warm-up.
    result_keep: u32,
    /// `mean`, `union`: wire format of results.
    result_values: ValueFormat,
    /// Owners refuse a contribution whose norm exceeds this multiple of the recent median; 0: none.
    norm_limit: f64,
    /// `mean`, `union`: limit on the influence of few contributions.
    robust: RobustRule,
    /// `robust = "trim"`: values dropped at each end of a coordinate; with too few sites, all but the median.
    trim: u32,
    /// Use of the mean. In the warm-up, `inner` or `outer`.
    apply: Application,
    /// `apply = "outer"`: step size for the mean delta.
    outer_learning_rate: f32,
    /// `apply = "outer"`: Nesterov momentum (μ); 0: plain SGD.
    outer_momentum: f32,
    /// Adapt bits per value to the link. Replaces `selection`, `keep`, `values`, `rounding`, `warmup_keep`, `warmup_values`, `result_keep` and
    /// `result_values`, which are then refused.
    adapt: bool,
    /// `adapt`: initial share of steps with at least two bits per value on any link. At least three warm-ups, unless 0.
    early_share: f64,
    /// `adapt`: maximum communication share of the time between a contribution and the use of its result.
    target_utilisation: f64,
    /// `adapt`: minimum bits per value of a round.
    bits_min: f64,
    /// `adapt`: maximum bits per value of a round. A warm-up of gradients may have twice as many, up to four.
    bits_max: f64,
    /// `adapt`: exchanges of a fragment that may wait in error feedback (‖residual‖ / ‖last addition‖). Beyond, bits rise and training waits. 0: no bound.
    backlog_max: f64,
    /// Reduction within a site.
    within_site: WithinSite,
    /// Parameters per fragment, a multiple of `chunk`. Multiplied where a worker would hold over 10,000 fragments.
    fragment_values: u32,
    /// Longest wait of an owner for a late site, ms, from the first contribution.
    deadline_ceiling_ms: u64,
    /// Shortest wait, ms.
    deadline_floor_ms: u64,
    /// In between: median of past waits plus this many median absolute deviations.
    deadline_mads: f64,
}

impl SyncKeys {
    /// Applies values that follow others: a number format set alone also applies to the warm-up and the
    /// results, if the preset has one format for all; a full chunk stays full if the chunk size changes.
    fn with_followers(mut self, preset: &SyncConfig) -> Self {
        if self.warmup_rounds.is_some() || self.warmup_share.is_some() {
            // A user who gives the length of the warm-up wants that.
            self.warmup_share_max = self.warmup_share_max.or(Some(1.0));
        }
        // An explicitly large interval is intended.
        self.every_max = self.every_max.or(self.every.map(|every| every.max(preset.every_max)));
        if preset.result_keep == preset.chunk {
            self.result_keep = self.result_keep.or(self.chunk);
        }
        if preset.result == ResultForm::Union && self.result == Some(ResultForm::Mean) {
            // The union's limit is no selection.
            self.result_keep = self.result_keep.or(Some(self.chunk.unwrap_or(preset.chunk)));
            self.result_values = self.result_values.or(Some(ValueFormat::Bf16));
        } else if preset.result == ResultForm::Union {
            // As much as two sites send.
            let both = |keep: u32| keep.saturating_mul(2).min(self.chunk.unwrap_or(preset.chunk));
            self.result_keep = self.result_keep.or(self.keep.map(both));
            self.result_keep = self.result_keep.or(self.chunk.filter(|chunk| *chunk < preset.result_keep));
        }
        if preset.random_keep == preset.chunk {
            self.random_keep = self.random_keep.or(self.chunk);
        }
        if self.selection == Some(SelectionRule::All) {
            // A user who wants all values sent wants so from the start.
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
    /// Replaces a preset's union where one is not possible. `is_open`: the user has not set `result`.
    fn with_fitting_result(self, is_open: bool) -> Self {
        let is_replaced = is_open && self.result == ResultForm::Union && !self.can_be_united();
        Self { result: if is_replaced { ResultForm::Bundle } else { self.result }, ..self }
    }

    /// Lets smaller chunks pass if a preset's count has no effect. `unset`: which of `keep`, `warmup_keep` and `result_keep` the user has not set.
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

    /// Whether the warm-up sends only some values; one of common steps sends all.
    #[must_use]
    pub fn warmup_selects(&self) -> bool {
        self.has_warmup() && !self.opens_with_gradients() && self.warmup_keep < self.chunk
    }

    /// Whether the error of selection or rounding is kept for the next contribution.
    #[must_use]
    pub fn has_residual(&self) -> bool {
        self.error_decay > 0.0
    }

    /// Returns the rounds that exchange the steps of one round, after the warm-up.
    #[must_use]
    pub fn exchanges(&self) -> u32 {
        if self.rank > 0 { 2 } else { 1 }
    }

    /// Whether a warm-up exists.
    #[must_use]
    pub fn has_warmup(&self) -> bool {
        self.warmup_rounds > 0 || self.warmup_share > 0.0
    }

    /// Whether every member computes a round's whole batch, and its gradient is not exchanged.
    #[must_use]
    pub fn is_redundant_in(&self, is_warmup: bool) -> bool {
        is_warmup && self.warmup_redundant == Redundancy::Always
    }

    /// Returns a worker's contribution to a round: in the warm-up, the common start of all optimisers.
    #[must_use]
    pub fn source_in(&self, is_warmup: bool) -> Source {
        if is_warmup && self.opens_with_gradients() { Source::Gradient } else { self.source }
    }

    /// Whether parts of a contribution leave while the rest is computed. The conditions: the device waits for
    /// the result (otherwise there is enough time, and the previous round is still in flight), no operation
    /// needs the contribution as a whole, and its duration is not measured.
    #[must_use]
    pub fn streams_in(&self, round: Round, is_warmup: bool) -> bool {
        let is_by_value = self.transform == Transform::None && (is_warmup || self.rank == 0);
        let waits = is_warmup || self.overlap == 0;
        self.source_in(is_warmup) == Source::Gradient
            && !self.is_redundant_in(is_warmup)
            && self.selection != SelectionRule::Columns
            && waits
            && is_by_value
            && !self.measures(round, is_warmup)
    }

    /// Whether the controller uses the duration of this round, from the end of a contribution to its result.
    /// In a warm-up some rounds suffice to know the link.
    #[must_use]
    pub fn measures(&self, round: Round, is_warmup: bool) -> bool {
        let sends = !self.is_redundant_in(is_warmup);
        self.adapt && sends && (!is_warmup || round.0.is_multiple_of(self.measured_every()))
    }

    /// Returns n if one round in n of a warm-up is measured, and contributed as a whole where others may not
    /// be; 1: all.
    #[must_use]
    pub fn measured_every(&self) -> u64 {
        if self.adapt && self.opens_with_gradients() { MEASURED_EVERY } else { 1 }
    }

    /// Returns the bits per value of a round that wants at least so many: bounded by `bits_max`, or by twice
    /// that in a warm-up of gradients.
    #[must_use]
    pub fn bits_at_least(&self, bits: f64, with_gradients: bool) -> f64 {
        bits.min(if with_gradients { 2.0 * self.bits_max } else { self.bits_max })
    }

    /// Whether all members make the same steps in the warm-up.
    #[must_use]
    pub fn opens_with_gradients(&self) -> bool {
        self.source.is_gradient() || self.inner == InnerRule::FrozenAdamw
    }

    /// Whether members diverge after a warm-up of common steps.
    #[must_use]
    pub fn parts_after_the_warmup(&self) -> bool {
        self.opens_with_gradients() && !self.source.is_gradient()
    }

    /// Whether error feedback of the warm-up is of another kind than later contributions and cannot be added
    /// to them.
    #[must_use]
    pub fn changes_kind_after_the_warmup(&self) -> bool {
        self.opens_with_gradients() && matches!(self.source, Source::Momentum | Source::Delta)
    }

    /// Returns the use of the mean of a round.
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
        // An adaptive run of gradients is measured in every round after the warm-up.
        let dense = SyncConfig { adapt: true, ..SyncConfig::of(SyncPreset::Dense) };
        assert!(!dense.streams_in(Round(1), false));
    }

    #[test]
    fn a_preset_s_union_has_as_much_as_two_sites_send_and_is_none_where_it_cannot_be() {
        let of = |keys: &str| -> SyncConfig {
            toml::from_str(&format!("preset = \"sparse-local\"\n{keys}")).unwrap()
        };
        let results = |keys| {
            let SyncConfig { result, result_keep, result_values, .. } = of(keys);
            (result, result_keep, result_values)
        };
        use ResultForm::{Bundle, Mean, Union};
        assert_eq!(results(""), (Union, 128, ValueFormat::TwoBit));
        assert_eq!(results("keep = 8"), (Union, 16, ValueFormat::TwoBit));
        assert_eq!(results("chunk = 64\nkeep = 60"), (Union, 64, ValueFormat::TwoBit));
        assert_eq!(results("result = \"mean\""), (Mean, 4096, ValueFormat::Bf16));
        for keys in ["selection = \"all\"", "selection = \"visible\"", "adapt = true", "transform = \"dct\""]
        {
            assert_eq!(of(keys).result, Bundle, "{keys}");
        }
    }
}
