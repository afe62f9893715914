//! Keys of `[train]` for the optimiser.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::check::range;
use super::error::shown;
use super::{
    Application, ConfigError, InnerRule, LateRule, Precision, RunConfig, Source, SyncPreset, TrainConfig,
    Transform,
};

/// Optimiser of steps with gradients: local ones, and those with a round's mean gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimiser {
    /// AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101).
    #[default]
    Adamw,
    /// Muon for the matrices of the blocks, AdamW for embeddings, output projection, vectors and adapters (Jordan et al. 2024; arXiv 2502.16982).
    Muon,
    /// Gradient descent with momentum.
    Sgd,
    /// Lion: the sign of an interpolated momentum (Chen et al. 2023, arXiv 2302.06675).
    Lion,
    /// Adafactor: second moments of matrices as sums of rows and columns (Shazeer & Stern 2018, arXiv 1804.04235).
    Adafactor,
}

/// `[train.muon]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuonConfig {
    /// Peak learning rate of matrices; `train.learning_rate` is that of all other tensors. Default: `train.learning_rate`, or 0.02 with `scale = "original"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Momentum.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Newton–Schulz iterations.
    pub steps: u32,
    /// Scale of the orthogonal update.
    pub scale: MuonScale,
    /// Number format of the iteration's products. Default: `bf16`, as its authors have it, on GPUs and on CPUs with bf16 instructions; elsewhere, and where members exchange gradients and must make equal steps, `train.precision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
}

/// Scale of Muon's update of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// 0.2·√max(rows, columns), which gives it the root mean square of AdamW's (arXiv 2502.16982).
    #[default]
    MatchRmsAdamw,
    /// √max(1, outputs / inputs) (Jordan et al. 2024).
    Original,
}

/// `[train.sgd]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SgdConfig {
    /// Momentum.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
}

/// `[train.lion]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LionConfig {
    /// β₁, of the interpolation whose sign is the step.
    pub beta1: f64,
    /// β₂, of the momentum.
    pub beta2: f64,
}

/// `[train.adafactor]`: without relative step sizes and without scaling by parameters; `train.learning_rate` applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdafactorConfig {
    /// Exponent of the second moment's decay: β₂ at update t is 1 − t^−`decay_rate`.
    pub decay_rate: f64,
    /// Largest root mean square of a tensor's update before the learning rate.
    pub clip_threshold: f64,
    /// Added to squared gradients (ε₁).
    pub epsilon: f64,
    /// β₁ of a first moment of the updates; 0: none.
    pub beta1: f64,
}

impl Default for MuonConfig {
    fn default() -> Self {
        Self {
            learning_rate: None,
            momentum: 0.95,
            nesterov: true,
            steps: 5,
            scale: MuonScale::default(),
            precision: None,
        }
    }
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false }
    }
}

impl Default for LionConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.99 }
    }
}

impl Default for AdafactorConfig {
    fn default() -> Self {
        Self { decay_rate: 0.8, clip_threshold: 1.0, epsilon: 1e-30, beta1: 0.0 }
    }
}

impl Optimiser {
    /// Whether updates need whole matrices, of which members of a tensor group have parts.
    #[must_use]
    pub fn needs_whole_matrices(self) -> bool {
        matches!(self, Self::Muon | Self::Adafactor)
    }
}

/// Learning rate of Jordan et al. for matrices.
const MUON_ORIGINAL_RATE: f64 = 0.02;
/// More do not make the update more orthogonal.
const MUON_STEPS_MAX: u32 = 20;
/// Most steps between two exchanges of a fragment by `auto` with Muon: one bit a value then fits a link of 0.05 bits a parameter and step (decision 0106).
const MUON_TURN_STEPS: u32 = 20;
/// Below 1.
const BETA_MAX: f64 = 1.0 - f64::EPSILON;

impl MuonConfig {
    /// Returns the peak learning rate of matrices in a run with this one.
    #[must_use]
    pub fn learning_rate(&self, train: &TrainConfig) -> f64 {
        self.learning_rate.unwrap_or(match self.scale {
            MuonScale::MatchRmsAdamw => train.learning_rate,
            MuonScale::Original => MUON_ORIGINAL_RATE,
        })
    }
}

/// Returns the keys of `[train]` and `[sync]` that a `run.toml` gives, such as `sync.inner`.
pub(crate) fn given_keys(text: &str) -> BTreeSet<String> {
    let tables = text.parse::<toml::Table>().unwrap_or_default();
    let of = |name: &'static str| {
        let table = tables.get(name).and_then(toml::Value::as_table);
        table.into_iter().flat_map(toml::Table::keys).map(move |key| format!("{name}.{key}"))
    };
    of("train").chain(of("sync")).collect()
}

impl RunConfig {
    /// Sets what follows from `sync.inner`, the optimiser, and the steps between rounds of `auto`, unless it is given. One of them names Muon for both. The warm-up of `auto` learns AdamW's second
    /// moment, which Muon's matrices have not; and Muon's changes lose less by waiting for a turn than by fewer bits.
    pub(crate) fn with_optimiser(mut self, given: &BTreeSet<String>) -> Self {
        let is_free = |key: &str| !given.contains(key);
        let (sync, optimiser) = (&mut self.sync, &mut self.train.optimiser);
        let is_auto = sync.preset == SyncPreset::Auto && sync.source == Source::Delta;
        if sync.inner == InnerRule::Muon && is_free("train.optimiser") {
            *optimiser = Optimiser::Muon;
        } else if sync.inner == InnerRule::Muon && *optimiser != Optimiser::Muon && is_free("sync.inner") {
            sync.inner = InnerRule::Adamw;
        } else if is_auto && *optimiser == Optimiser::Muon && is_free("sync.inner") {
            sync.inner = InnerRule::Muon;
        }
        sync.follow_every(is_free);
        if is_auto && sync.inner == InnerRule::Muon {
            if is_free("sync.warmup_rounds") {
                sync.warmup_rounds = 0;
            }
            if is_free("sync.warmup_share") {
                sync.warmup_share = 0.0;
            }
            if is_free("sync.early_share") && sync.adapt {
                sync.early_share = 0.0;
            }
            if is_free("sync.late") && sync.has_residual() && sync.transform == Transform::None {
                // Changes that wait are not made again: decision 0106.
                sync.late = LateRule::KeepUnsent;
            }
            if is_free("sync.groups") && sync.adapt && sync.every_max > sync.every {
                let turns = u64::from(MUON_TURN_STEPS) / sync.every.max(1);
                sync.groups = sync.groups.max(u32::try_from(turns).unwrap_or(MUON_TURN_STEPS));
            }
        }
        if sync.source.is_gradient() && *optimiser == Optimiser::Muon {
            // Each member makes the step, and all need the same.
            let precision = &mut self.train.muon.get_or_insert_default().precision;
            *precision = precision.or(Some(self.train.precision));
        }
        self
    }

    /// Refuses keys that the optimiser does not read, and strategies that do not fit it.
    pub(crate) fn check_optimiser(&self) -> Result<(), ConfigError> {
        self.train.check_tables()?;
        self.train.check_adamw_keys()?;
        if self.train.optimiser == Optimiser::Adamw && self.sync.inner != InnerRule::Muon {
            return Ok(());
        }
        let reason = self.unfit_strategy().or_else(|| {
            let is_split = self.train.optimiser.needs_whole_matrices() && self.parallel.is_shared();
            is_split.then_some("needs whole matrices, which members of a tensor group share: take parallel.tensor = 1, or \"adamw\"")
        });
        let reason = reason.or_else(|| {
            let has_no_matrix = self.train.lora.is_some() && self.train.unfrozen_parameters.is_none();
            (self.train.optimiser == Optimiser::Muon && has_no_matrix).then_some(
                "is for whole matrices, and only adapters are trained, which AdamW updates: take \"adamw\"",
            )
        });
        reason.map_or(Ok(()), |reason| {
            Err(ConfigError::value("train.optimiser", shown(&self.train.optimiser), reason))
        })
    }

    /// Returns why the strategy does not fit an optimiser other than AdamW, if so.
    fn unfit_strategy(&self) -> Option<&'static str> {
        let sync = &self.sync;
        if sync.inner == InnerRule::Muon && self.train.optimiser != Optimiser::Muon {
            return Some("is not that of sync.inner = \"muon\": take \"muon\", or leave one of them out");
        }
        if sync.source == Source::Momentum {
            return Some(
                "sync.source = \"momentum\" exchanges AdamW's first moment: take \"adamw\", or preset = \"dense\"",
            );
        }
        if sync.source == Source::Delta && sync.inner == InnerRule::FrozenAdamw {
            return Some(
                "sync.inner = \"frozen-adamw\", which preset = \"auto\" has, freezes AdamW's second moment: take preset = \"diloco\", \
                 \"sparse-local\" or \"dense\", or \"adamw\"",
            );
        }
        if sync.look_ahead {
            return Some("sync.look_ahead foresees AdamW's step: take look_ahead = false, or \"adamw\"");
        }
        match sync.apply {
            Application::Sgd if self.train.optimiser != Optimiser::Sgd => Some(
                "sync.apply = \"sgd\" makes the steps itself: take \"sgd\" (for the warm-up) or \"adamw\", or sync.apply = \"inner\"",
            ),
            Application::Sign => {
                Some("sync.apply = \"sign\" makes the steps itself: take \"adamw\", or preset = \"dense\"")
            }
            _ => None,
        }
    }
}

impl TrainConfig {
    /// Checks the optimisers' tables, of which only the present one's may be there.
    fn check_tables(&self) -> Result<(), ConfigError> {
        let tables = [
            (Optimiser::Muon, "train.muon", self.muon.is_some()),
            (Optimiser::Sgd, "train.sgd", self.sgd.is_some()),
            (Optimiser::Lion, "train.lion", self.lion.is_some()),
            (Optimiser::Adafactor, "train.adafactor", self.adafactor.is_some()),
        ];
        if let Some((of, key, _)) =
            tables.into_iter().find(|(of, _, is_there)| *is_there && *of != self.optimiser)
        {
            let reason =
                format!("only optimiser = \"{}\" reads it: take that, or remove the table", shown(&of));
            return Err(ConfigError::value(key, "…", reason));
        }
        let numbers = [
            self.muon.as_ref().map(|muon| {
                vec![
                    ("train.muon.learning_rate", muon.learning_rate(self), f64::MIN_POSITIVE, f64::MAX),
                    ("train.muon.momentum", muon.momentum, 0.0, BETA_MAX),
                    ("train.muon.steps", f64::from(muon.steps), 1.0, f64::from(MUON_STEPS_MAX)),
                ]
            }),
            self.sgd.as_ref().map(|sgd| vec![("train.sgd.momentum", sgd.momentum, 0.0, BETA_MAX)]),
            self.lion.as_ref().map(|lion| {
                vec![
                    ("train.lion.beta1", lion.beta1, 0.0, BETA_MAX),
                    ("train.lion.beta2", lion.beta2, 0.0, BETA_MAX),
                ]
            }),
            self.adafactor.as_ref().map(|adafactor| {
                vec![
                    ("train.adafactor.decay_rate", adafactor.decay_rate, f64::MIN_POSITIVE, 1.0),
                    ("train.adafactor.clip_threshold", adafactor.clip_threshold, f64::MIN_POSITIVE, f64::MAX),
                    ("train.adafactor.epsilon", adafactor.epsilon, 0.0, 1.0),
                    ("train.adafactor.beta1", adafactor.beta1, 0.0, BETA_MAX),
                ]
            }),
        ];
        for (key, value, low, high) in numbers.into_iter().flatten().flatten() {
            if !(low..=high).contains(&value) {
                return Err(ConfigError::value(key, value, range(low, high)));
            }
        }
        if self.sgd.as_ref().is_some_and(|sgd| sgd.nesterov && sgd.momentum == 0.0) {
            let reason = "without momentum there is none of Nesterov: take a momentum above 0, or false";
            return Err(ConfigError::value("train.sgd.nesterov", true, reason));
        }
        Ok(())
    }

    /// Refuses keys of AdamW beside an optimiser that does not read them.
    fn check_adamw_keys(&self) -> Result<(), ConfigError> {
        if matches!(self.optimiser, Optimiser::Adamw | Optimiser::Muon) {
            return Ok(());
        }
        let usual = Self::default();
        let keys = [
            ("train.beta1", self.beta1, usual.beta1),
            ("train.beta2", self.beta2, usual.beta2),
            ("train.epsilon", self.epsilon, usual.epsilon),
        ];
        let own = keys.into_iter().find(|(_, value, usual)| value != usual);
        own.map_or(Ok(()), |(key, value, _)| {
            let name = shown(&self.optimiser);
            let reason = format!("is AdamW's, and {name} has keys of its own in [train.{name}]: remove it");
            Err(ConfigError::value(key, value, reason))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 100\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 2\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n";

    fn with(text: &str) -> Result<RunConfig, String> {
        RunConfig::parse(&format!("{SMALL}{text}")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_optimiser_goes_with_gradients_and_deltas() {
        for name in ["adamw", "muon", "sgd", "lion", "adafactor"] {
            for preset in ["dense", "powersgd", "diloco", "streaming-diloco", "cocktail", "sparse-local"] {
                let config =
                    with(&format!("[train]\noptimiser = \"{name}\"\n[sync]\npreset = \"{preset}\"")).unwrap();
                assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
            }
        }
        let usual = with("").unwrap();
        assert!(!usual.to_toml().unwrap().contains("optimiser"), "it is written as before");
        with("[train]\noptimiser = \"sgd\"\n[sync]\npreset = \"dgc\"").unwrap();
    }

    #[test]
    fn strategies_that_are_made_for_adamw_or_make_the_step_themselves_refuse_others() {
        for (train, sync, words) in [
            ("lion", "preset = \"auto\"", "train.optimiser = lion: sync.inner = \"frozen-adamw\""),
            ("muon", "inner = \"frozen-adamw\"", "train.optimiser = muon: sync.inner = \"frozen-adamw\""),
            ("adamw", "preset = \"diloco\"\ninner = \"muon\"", "train.optimiser = adamw: is not that of"),
            ("muon", "preset = \"dense\"\ninner = \"muon\"", "sync.inner = muon: nobody trains by itself"),
            ("lion", "preset = \"onebit-adam\"", "train.optimiser = lion: sync.source = \"momentum\""),
            ("muon", "preset = \"dgc\"", "train.optimiser = muon: sync.apply = \"sgd\" makes"),
            ("sgd", "preset = \"demo\"", "train.optimiser = sgd: sync.apply = \"sign\" makes"),
            (
                "muon",
                "preset = \"dense\"\noverlap = 1\nlook_ahead = true",
                "train.optimiser = muon: sync.look_ahead",
            ),
            (
                "muon",
                "preset = \"dense\"\n[parallel]\ntensor = 2",
                "train.optimiser = muon: needs whole matrices",
            ),
            (
                "adafactor",
                "preset = \"dense\"\n[parallel]\ntensor = 2",
                "train.optimiser = adafactor: needs whole matrices",
            ),
        ] {
            let message = with(&format!("[train]\noptimiser = \"{train}\"\n[sync]\n{sync}")).unwrap_err();
            assert!(message.starts_with(words), "{train}, {sync}: {message}");
        }
    }

    #[test]
    fn turns_of_auto_with_muon_follow_the_steps_between_rounds() {
        for (keys, rounds, early_share) in [
            ("", (4, 2, 5), 0.0),
            ("every = 1", (1, 1, 20), 0.0),
            ("every = 10", (10, 2, 2), 0.0),
            ("every_max = 1", (1, 1, 8), 0.0),
            ("groups = 3", (4, 2, 3), 0.0),
            ("early_share = 0.1", (4, 2, 5), 0.1),
            ("adapt = false", (4, 2, 2), 0.2),
        ] {
            let config = with(&format!("[train]\noptimiser = \"muon\"\n[sync]\n{keys}")).unwrap();
            let sync = &config.sync;
            let pace = (sync.every, sync.overlap, sync.groups);
            assert_eq!((pace, sync.early_share), (rounds, early_share), "{keys}");
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config, "{keys}");
        }
    }

    #[test]
    fn muon_is_named_once_and_auto_needs_no_warmup_with_it() {
        for (text, optimiser, inner, warmup) in [
            ("[sync]\npreset = \"muloco\"", Optimiser::Muon, InnerRule::Muon, 0),
            (
                "[train]\noptimiser = \"adamw\"\n[sync]\npreset = \"muloco\"",
                Optimiser::Adamw,
                InnerRule::Adamw,
                0,
            ),
            (
                "[train]\noptimiser = \"lion\"\n[sync]\npreset = \"muloco\"",
                Optimiser::Lion,
                InnerRule::Adamw,
                0,
            ),
            ("[train]\noptimiser = \"muon\"", Optimiser::Muon, InnerRule::Muon, 0),
            ("[sync]\ninner = \"muon\"", Optimiser::Muon, InnerRule::Muon, 0),
            ("[sync]\ninner = \"muon\"\nwarmup_rounds = 7", Optimiser::Muon, InnerRule::Muon, 7),
            (
                "[train]\noptimiser = \"muon\"\n[sync]\ninner = \"adamw\"",
                Optimiser::Muon,
                InnerRule::Adamw,
                100,
            ),
            ("", Optimiser::Adamw, InnerRule::FrozenAdamw, 100),
        ] {
            let config = with(text).unwrap();
            assert_eq!((config.train.optimiser, config.sync.inner), (optimiser, inner), "{text}");
            assert_eq!(config.round_schedule().warmup_rounds, warmup, "{text}");
            let is_auto_with_muon = config.sync.preset == SyncPreset::Auto && inner == InnerRule::Muon;
            let early = (config.sync.early_share, config.sync.groups, config.sync.late);
            assert_eq!(early == (0.0, 5, LateRule::KeepUnsent), is_auto_with_muon, "{text}: {early:?}");
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config, "{text}");
        }
    }

    #[test]
    fn where_all_must_make_the_same_step_the_format_of_muon_does_not_follow_the_device() {
        for (text, precision) in [
            ("[sync]\npreset = \"dense\"", Some(Precision::F32)),
            ("precision = \"bf16\"\n[sync]\npreset = \"dense\"", Some(Precision::Bf16)),
            ("muon.precision = \"bf16\"\n[sync]\npreset = \"dense\"", Some(Precision::Bf16)),
            ("[sync]\nwarmup_rounds = 7", None),
            ("", None),
            ("[sync]\npreset = \"muloco\"", None),
        ] {
            let config = with(&format!("[train]\noptimiser = \"muon\"\n{text}")).unwrap();
            assert_eq!(config.train.muon.and_then(|muon| muon.precision), precision, "{text}");
        }
    }

    #[test]
    fn keys_of_another_optimiser_and_senseless_numbers_are_refused_by_name() {
        let dense = "[sync]\npreset = \"dense\"";
        for (train, words) in [
            ("[train.muon]\nsteps = 4", "train.muon = …: only optimiser = \"muon\""),
            ("optimiser = \"lion\"\nbeta2 = 0.9", "train.beta2 = 0.9: is AdamW's, and lion"),
            ("optimiser = \"muon\"\n[train.muon]\nsteps = 0", "train.muon.steps = 0: must be at least 1"),
            ("optimiser = \"muon\"\n[train.muon]\nmomentum = 1.0", "train.muon.momentum = 1: must be"),
            ("optimiser = \"sgd\"\n[train.sgd]\nmomentum = 0\nnesterov = true", "train.sgd.nesterov = true"),
            (
                "optimiser = \"adafactor\"\n[train.adafactor]\nclip_threshold = 0",
                "train.adafactor.clip_threshold = 0",
            ),
            ("optimiser = \"lion\"\n[train.lion]\nbeta3 = 1", "unknown key `beta3`"),
            ("optimiser = \"adam\"", "line"),
        ] {
            let message = with(&format!("{dense}\n[train]\n{train}")).unwrap_err();
            assert!(message.starts_with(words), "{train}: {message}");
        }
    }

    #[test]
    fn the_learning_rate_of_matrices_follows_from_the_scale() {
        let rate = |lines: &str| {
            let text = format!(
                "[sync]\npreset = \"dense\"\n[train]\nlearning_rate = 0.003\noptimiser = \"muon\"\n[train.muon]\n{lines}"
            );
            let train = with(&text).unwrap().train;
            train.muon.clone().unwrap().learning_rate(&train)
        };
        assert_eq!(
            [rate(""), rate("scale = \"original\""), rate("learning_rate = 0.05")],
            [0.003, 0.02, 0.05]
        );
    }
}
