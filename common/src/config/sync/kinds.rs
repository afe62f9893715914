//! Values of the keys of `[sync]`.

use serde::{Deserialize, Serialize};

/// The strategies, named after their papers. A preset is a value for each of the other keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncPreset {
    /// Common steps in the warm-up, then deltas under its second moment, by fragment group. Bits follow the measured link.
    #[default]
    Auto,
    /// Gradients averaged after each step, before the optimiser.
    Dense,
    /// Largest momentum-corrected gradients after each step (1712.01887).
    Dgc,
    /// Low-rank gradient factors after each step (1905.13727).
    Powersgd,
    /// Signs of momenta after each step, both ways. A dense warm-up learns the frozen second moment (2102.02888).
    OnebitAdam,
    /// Largest components of slowly decaying momenta; the sign of their mean is applied (2411.19870).
    Demo,
    /// Mean deltas after H local steps, with outer Nesterov momentum (2311.08105).
    Diloco,
    /// DiLoCo by fragment group, in four bits, mixed into local training (2501.18512).
    StreamingDiloco,
    /// Deltas after each step: common random mask, top-k, few bits, both ways (CocktailSGD, ICML 2023).
    Cocktail,
    /// Deltas after several local steps: chunked top-k with error feedback (2508.15706).
    SparseLocal,
    /// Deltas after several local steps of Muon, in two bits with error feedback, without a warm-up (MuLoCo, 2505.23725).
    Muloco,
}

impl SyncPreset {
    /// Every preset.
    pub const ALL: [Self; 11] = [
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
        Self::Muloco,
    ];
}

/// Contribution of a worker to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The gradient of a step. All members apply the same update, without local training.
    Gradient,
    /// The gradient of a step, accumulated with momentum until sent.
    CorrectedGradient,
    /// AdamW's first moment after the gradient of a step: β₁·m + (1−β₁)·g.
    Momentum,
    /// The change by local training since the last round: θ_g − θ.
    Delta,
}

impl Source {
    /// Whether members update their parameters from results alone.
    #[must_use]
    pub fn is_gradient(self) -> bool {
        self != Self::Delta
    }
}

/// Selection of values to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionRule {
    /// All.
    All,
    /// The `keep` largest magnitudes of each `chunk`.
    TopK,
    /// The largest magnitudes of a fragment, on average about `keep` per `chunk`.
    Threshold,
    /// Columns with a gradient under `[train.sparse_backward]`, and all values outside product weights.
    Columns,
    /// Changes that alter a parameter in bf16; smaller ones wait in error feedback (PULSE, 2602.03839).
    Visible,
}

/// Transform before the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transform {
    /// None.
    None,
    /// Two-dimensional cosine transform of 64×64 matrix tiles; of 4096 values of the rest.
    Dct,
}

/// Form of published results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResultForm {
    /// Contributions as received: compressed only once, but the size grows with the sites.
    Bundle,
    /// The mean, compressed again. The owner keeps the residual for its next result.
    Mean,
    /// The mean at each position that any site sent. Residual as with `mean`.
    Union,
}

/// Use of the mean of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Application {
    /// Gradient of one step of the inner optimiser, `train.optimiser`.
    Inner,
    /// Direction of a gradient descent step.
    Sgd,
    /// The sign is the step direction.
    Sign,
    /// AdamW's new first moment; the second stays frozen.
    FrozenAdamw,
    /// Gradient of one outer SGD step with Nesterov momentum.
    Outer,
}

/// Optimiser of local steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InnerRule {
    /// `train.optimiser`, whichever it is, with local moments.
    Adamw,
    /// `train.optimiser = "muon"`, which it sets, with local moments.
    Muon,
    /// AdamW with a common, frozen second moment, learnt in the warm-up from gradients of each step. Local training drifts far less (0/1 Adam, 2202.06009).
    FrozenAdamw,
}

/// The owner's limit on the influence of a few contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RobustRule {
    /// No limit: mean by samples.
    None,
    /// Contributions with a norm above the round's median are scaled down to it; sites count equally (2012.10333).
    Clip,
    /// The `trim` largest and smallest values of each coordinate are dropped; sites count equally (1803.01498).
    Trim,
}

/// Reduction of updates within a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithinSite {
    /// Ring over TCP; without one, as `direct`.
    Ring,
    /// Each member sends its update to the uploading members.
    Direct,
    /// NCCL between the GPUs of one machine.
    Nccl,
}

/// Merge of a result with the training since its contribution (`overlap` > 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LateRule {
    /// θ ← θ + (θ_new − θ at the contribution): local steps since then are kept.
    Keep,
    /// The same, and changes that error feedback holds back stay in the local parameters too (CocktailSGD).
    KeepUnsent,
    /// θ ← α·θ + (1−α)·θ_new, with α = `mix` (2501.18512).
    Mix,
}

/// Whether each member computes the whole batch of the warm-up, in place of an exchange of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redundancy {
    /// Where all members compute alike and save time by it, as measured before the first step.
    Auto,
    /// Yes.
    Always,
    /// No.
    Never,
}
