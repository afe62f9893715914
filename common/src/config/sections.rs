//! The tables and keys of `run.toml`.

use serde::{Deserialize, Serialize};

use super::bottleneck::BottleneckConfig;
use super::decoder::DecoderConfig;
use super::encoder::EncoderConfig;
use super::{
    AdafactorConfig, CheckpointConfig, DataConfig, DecayShape, EvaluateConfig, FaultConfig,
    LearningRateSchedule, LionConfig, LoraConfig, MuonConfig, Optimiser, ParallelConfig, Precision,
    PrivacyConfig, SecureAggregationConfig, SelectiveBackwardConfig, SgdConfig, SparseBackwardConfig,
    SyncConfig,
};
use crate::schedule::{Changes, RoundSchedule};

/// Rounds of a warm-up that `sync.warmup_share_max` leaves, however short the run: AdamW's second moment is learnt in it.
const WARMUP_ROUNDS_MIN: u64 = 50;

/// A whole `run.toml`, checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The run.
    pub run: RunSection,
    /// The model.
    pub model: ModelConfig,
    /// Training data.
    pub data: DataConfig,
    /// Training on each worker.
    #[serde(default)]
    pub train: TrainConfig,
    /// Consequences of the held-out loss.
    #[serde(default, skip_serializing_if = "is_default")]
    pub evaluate: EvaluateConfig,
    /// Division of model copies among workers.
    #[serde(default)]
    pub parallel: ParallelConfig,
    /// Exchange between sites.
    #[serde(default)]
    pub sync: SyncConfig,
    /// Clipping and noise on updates before they leave a site. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacyConfig>,
    /// Masks that hide single contributions from owners. Absent: no masks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_aggregation: Option<SecureAggregationConfig>,
    /// Checkpoints on disk.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// Failure detector.
    #[serde(default)]
    pub faults: FaultConfig,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSection {
    /// Display name.
    pub name: String,
    /// Workers that must join before training starts.
    pub workers: u32,
    /// Steps per worker.
    pub steps: u64,
    /// Seed of all randomness in the run.
    #[serde(default = "RunSection::default_seed")]
    pub seed: u64,
}

impl RunSection {
    fn default_seed() -> u64 {
        1
    }
}

/// The architecture family, which determines parameter names and layouts; those of language models follow
/// Hugging Face.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// GPT-2: learnt positions, LayerNorm, GELU, biases.
    Gpt2,
    /// Llama: rotary positions, RMSNorm, SwiGLU, grouped-query attention, no biases.
    Llama,
    /// Mistral: Llama with an optional window.
    Mistral,
    /// Qwen2 and 2.5: biases of queries, keys and values.
    Qwen2,
    /// Qwen3: norms of each head's queries and keys.
    Qwen3,
    /// Qwen3 with experts.
    #[serde(rename = "qwen3_moe")]
    Qwen3Moe,
    /// Mixtral: Mistral with experts.
    Mixtral,
    /// OLMoE: experts; norms of queries and keys.
    Olmoe,
    /// SmolLM3: every fourth layer without positions.
    SmolLm3,
    /// Phi-3 and 4: Llama whose files join queries, keys and values.
    Phi3,
    /// OLMo 2: norms behind, and of queries and keys.
    Olmo2,
    /// Gemma 2: norms on both sides, GELU, windows, soft caps.
    Gemma2,
    /// Gemma 3, its text model: norms of each head, five of six layers with a window.
    Gemma3,
    /// BERT, with its masked head.
    Bert,
    /// RoBERTa: BERT whose positions begin behind the padding token.
    Roberta,
    /// XLM-RoBERTa: RoBERTa by another name.
    #[serde(rename = "xlm-roberta")]
    XlmRoberta,
    /// ELECTRA's generator: BERT with narrow embeddings.
    Electra,
    /// Multi-layer perceptron that classifies images.
    Mlp,
    /// Convolutional image classifier: 3×3 convolutions, each with ReLU and 2×2 pooling, then a perceptron.
    Cnn,
}

impl ModelKind {
    /// Whether it classifies images; otherwise it is a language model.
    #[must_use]
    pub fn is_of_images(self) -> bool {
        matches!(self, Self::Mlp | Self::Cnn)
    }

    /// Returns its name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Mixtral => "mixtral",
            Self::Olmoe => "olmoe",
            Self::SmolLm3 => "smollm3",
            Self::Phi3 => "phi3",
            Self::Olmo2 => "olmo2",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::XlmRoberta => "xlm-roberta",
            Self::Electra => "electra",
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
        }
    }
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Folder of a pretrained model, from whose weights the run starts: as `save_pretrained` writes it, or a checkpoint. Without `kind`, all other
    /// keys come from its `config.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Architecture.
    pub kind: ModelKind,
    /// Language models (needed): transformer blocks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layers: u32,
    /// Language models (needed): residual stream width.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub width: u32,
    /// Language models (needed): attention heads.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heads: u32,
    /// All but gpt2: key and value heads. Default: `heads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_heads: Option<u32>,
    /// Language models: inner feed-forward width. Default: 4 × width (gpt2); ⅔ of that, rounded up to a multiple of 64 (others).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed_forward_width: Option<u32>,
    /// Language models (needed): longest sequence in tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context: u32,
    /// Language models: vocabulary size. Default: the tokenizer's (256 for bytes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u32>,
    /// Language models: use the token embedding as output projection. Default: yes (gpt2, gemma, encoders), no (others).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied_embeddings: Option<bool>,
    /// Decoders but gpt2: further choices of the architecture. Default: those of the family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder: Option<DecoderConfig>,
    /// Encoders: further choices of the architecture. Default: those of the family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderConfig>,
    /// gpt2: width of a fixed subspace that attention and feed-forward parts write into. Stages of a pipeline send so many values per token, not `width`
    /// (arXiv 2506.01260). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subspace: Option<u32>,
    /// gpt2: narrow places of the residual stream, for stages of a pipeline. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<BottleneckConfig>,
    /// mlp, cnn: hidden layer widths. Default: `[500, 500, 500]` (mlp), `[128]` (cnn).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<Vec<u32>>,
    /// cnn: channels after each convolution. Default: `[32, 64]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<u32>>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
pub(super) fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Whether a key has its default value, so that a run without it is written as before it existed.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
pub(super) fn is_true(value: &bool) -> bool {
    *value
}

impl ModelConfig {
    /// Creates a model with only its kind set; the numbers that a language model needs are zero.
    #[must_use]
    pub const fn of(kind: ModelKind) -> Self {
        Self {
            from: None,
            kind,
            layers: 0,
            width: 0,
            heads: 0,
            kv_heads: None,
            feed_forward_width: None,
            context: 0,
            vocabulary: None,
            tied_embeddings: None,
            decoder: None,
            encoder: None,
            subspace: None,
            bottleneck: None,
            hidden: None,
            channels: None,
        }
    }
}

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Samples (sequences or images) per step, over all workers.
    pub batch: u32,
    /// Samples per forward pass on a worker; gradients accumulate.
    pub micro_batch: u32,
    /// Recomputation of each block's activations in the backward pass. Costs a third more arithmetic. Memory holds one block's activations instead of all.
    pub recompute: bool,
    /// Gradient share kept by backward passes. Absent: all.
    pub sparse_backward: Option<SparseBackwardConfig>,
    /// Sample selection for backward passes. Absent: all samples.
    pub selective_backward: Option<SelectiveBackwardConfig>,
    /// Optimiser. Default: `adamw`.
    #[serde(skip_serializing_if = "is_default")]
    pub optimiser: Optimiser,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Course of the learning rate behind the warm-up, to the last step of the run. Default: `cosine`.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule: LearningRateSchedule,
    /// Final learning rate as a share of the peak.
    pub final_learning_rate_share: f64,
    /// Warm-up steps to the peak learning rate.
    pub warmup_steps: u64,
    /// Warm-up as a share of the run's steps, in place of `warmup_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_share: Option<f64>,
    /// `schedule = "wsd"`: decay as a share of the run's steps. Default: 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_share: Option<f64>,
    /// `schedule = "wsd"`: form of the decay. Default: `linear`.
    #[serde(skip_serializing_if = "is_default")]
    pub decay_shape: DecayShape,
    /// Decoupled weight decay, on matrices only: θ ← (1 − learning rate · weight decay)·θ in each step.
    pub weight_decay: f64,
    /// AdamW's β₁.
    pub beta1: f64,
    /// AdamW's β₂.
    pub beta2: f64,
    /// AdamW's ε.
    pub epsilon: f64,
    /// Maximum gradient norm; 0 disables clipping.
    pub gradient_clip: f64,
    /// Share of each target that is spread evenly over all classes (Szegedy et al. 2016). In training losses only.
    #[serde(skip_serializing_if = "is_default")]
    pub label_smoothing: f64,
    /// Coefficient of (log Σ exp logits)² in the training loss, which keeps logits small (PaLM, arXiv 2204.02311); 1e-4 is usual.
    #[serde(skip_serializing_if = "is_default")]
    pub z_loss: f64,
    /// Dropout of the embedding and of what each half of a layer adds to the residual stream (Srivastava et al. 2014): transformers' `resid_pdrop` and
    /// `embd_pdrop`. In training alone. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Dropout of attention weights: transformers' `attn_pdrop` and `attention_dropout`. Scores are then kept for the backward pass. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_dropout: Option<f64>,
    /// Dropout before the products of a head for classes: transformers' `classifier_dropout`. Default: `dropout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classifier_dropout: Option<f64>,
    /// Decay per step of a moving average of the weights, which checkpoints carry beside them: average ← decay · average + (1 − decay) · weights after each
    /// round, with the power of its steps. 0.999 to 0.9999 are usual. `worker sample` and `coordinator checkpoints export` use it with `--ema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Number format of forward and backward passes.
    pub precision: Precision,
    /// Rounds between validations; 0: only at the end.
    pub evaluate_every_rounds: u64,
    /// Batches per validation, each of `micro_batch` samples.
    pub evaluate_batches: u32,
    /// `optimiser = "muon"`: its numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub muon: Option<MuonConfig>,
    /// `optimiser = "sgd"`: its numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sgd: Option<SgdConfig>,
    /// `optimiser = "lion"`: its numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lion: Option<LionConfig>,
    /// `optimiser = "adafactor"`: its numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adafactor: Option<AdafactorConfig>,
    /// Low-rank adapters beside frozen weights. Absent: all weights are trained.
    pub lora: Option<LoraConfig>,
    /// The only trained tensors, besides adapters, as patterns of their names: `*` matches anything, `?` one character. Absent: all, or none besides adapters.
    /// A head for classes is trained in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfrozen_parameters: Option<Vec<String>>,
    /// Division of each step among workers. Default: `by_speed` if every worker holds the whole model and `[privacy]` is absent, else `even`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<ShareRule>,
}

/// Division of a step's sequences among workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareRule {
    /// In proportion to recent speed.
    BySpeed,
    /// Equal parts.
    Even,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            batch: 32,
            micro_batch: 8,
            recompute: false,
            sparse_backward: None,
            selective_backward: None,
            optimiser: Optimiser::default(),
            learning_rate: 1e-3,
            schedule: LearningRateSchedule::default(),
            final_learning_rate_share: 0.1,
            warmup_steps: 20,
            warmup_share: None,
            decay_share: None,
            decay_shape: DecayShape::default(),
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            gradient_clip: 1.0,
            label_smoothing: 0.0,
            dropout: None,
            attention_dropout: None,
            classifier_dropout: None,
            z_loss: 0.0,
            ema_decay: None,
            precision: Precision::F32,
            evaluate_every_rounds: 0,
            evaluate_batches: 8,
            muon: None,
            sgd: None,
            lion: None,
            adafactor: None,
            lora: None,
            unfrozen_parameters: None,
            shares: None,
        }
    }
}

impl RunConfig {
    /// Returns the effective configuration, with all defaults, as a `run.toml`.
    ///
    /// # Errors
    /// A path is not UTF-8, which TOML cannot represent.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// Returns the number of replicas, each trained by one or several workers: the samples of a step are
    /// divided among them.
    #[must_use]
    pub fn replicas(&self) -> u32 {
        (self.run.workers / self.parallel.ranks_per_replica().max(1)).max(1)
    }

    /// Whether shares of a step may follow speed. A divided replica is as fast as its slowest part, which
    /// heartbeats do not report; the privacy cost assumes even shares.
    #[must_use]
    pub fn may_share_by_speed(&self) -> bool {
        !self.parallel.is_divided() && self.privacy.is_none()
    }

    /// Drops shares by speed if a plan forbids them.
    pub fn drop_speed_shares(&mut self) {
        if !self.may_share_by_speed() && self.train.shares == Some(ShareRule::BySpeed) {
            self.train.shares = None;
        }
    }

    /// Whether shares follow speed.
    #[must_use]
    pub fn shares_follow_speed(&self) -> bool {
        self.may_share_by_speed() && self.train.shares != Some(ShareRule::Even)
    }

    /// Returns the predictions per sample: the tokens of a sequence, or the class of an image.
    #[must_use]
    pub fn predictions_per_sample(&self) -> u32 {
        if self.data.image.is_some() { 1 } else { self.data.sequence_length }
    }

    /// Returns the vocabulary size, or the number of image classes. `None`: the tokenizer's, which is a file
    /// on the workers' machines.
    #[must_use]
    pub fn vocabulary(&self) -> Option<u32> {
        if let Some(image) = &self.data.image {
            return Some(image.classes);
        }
        let is_bytes = self.data.tokenizer == DataConfig::BYTES;
        self.model.vocabulary.or(is_bytes.then_some(DataConfig::BYTES_VOCABULARY))
    }

    /// Whether members may exchange data outside of rounds: checkpoints and training data.
    #[must_use]
    pub fn may_be_shared(&self) -> bool {
        self.privacy.is_none() && self.secure_aggregation.is_none()
    }

    /// Whether it is a classifier, of images or of texts: each worker has all of it.
    #[must_use]
    pub fn is_of_classes(&self) -> bool {
        self.model.kind.is_of_images() || self.data.classification.is_some()
    }

    /// Whether the coordinator has yet to decide on the division of replicas.
    #[must_use]
    pub fn is_plan_open(&self) -> bool {
        self.parallel.is_open_in(self)
    }

    /// Returns the schedule of rounds.
    #[must_use]
    pub fn round_schedule(&self) -> RoundSchedule {
        let SyncConfig {
            warmup_rounds,
            warmup_share,
            warmup_share_max,
            warmup_every,
            every,
            overlap,
            groups,
            ..
        } = self.sync;
        let rounds_of = |share: f64| ((share * self.run.steps as f64).ceil() as u64).div_ceil(warmup_every);
        let is_limited = self.model.from.is_some() && warmup_share_max < 1.0;
        let most = if is_limited { rounds_of(warmup_share_max).max(WARMUP_ROUNDS_MIN) } else { u64::MAX };
        let warmup_rounds = warmup_rounds.min(most).max(rounds_of(warmup_share));
        RoundSchedule {
            warmup_rounds,
            warmup_every,
            every,
            overlap,
            groups,
            exchanges: self.sync.exchanges(),
            steps: self.run.steps,
            changes: Changes::NONE,
        }
    }
}
