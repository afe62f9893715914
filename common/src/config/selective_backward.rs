//! `[train.selective_backward]`: backward passes for hard samples (Jiang et al. 2019, "Accelerating deep
//! learning by focusing on the biggest losers", arXiv 1910.00762).

use serde::{Deserialize, Serialize};

use super::sync::Application;
use super::{ConfigError, RunConfig};

/// `[train.selective_backward]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectiveBackwardConfig {
    /// A sample is selected with probability p^β, where p is the share of recent losses below its own. About 1 / (β + 1) of the samples are selected.
    pub beta: f64,
    /// Recent losses of this worker that each loss is compared with.
    #[serde(default = "SelectiveBackwardConfig::usual_history")]
    pub history: u32,
    /// Source of a sample's loss.
    #[serde(default)]
    pub mode: SelectionMode,
    /// `stale`: epochs for which a loss stays valid. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_epochs: Option<u32>,
    /// Divide a selected sample's gradient by its probability, so that the expectation is the gradient of all samples.
    #[serde(default)]
    pub importance: bool,
    /// Initial epochs that train on every sample.
    #[serde(default = "SelectiveBackwardConfig::usual_full_epochs")]
    pub full_epochs: u32,
}

/// Source of the loss that decides on a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelectionMode {
    /// A forward pass each time.
    #[default]
    Fresh,
    /// An earlier epoch, if recent enough.
    Stale,
}

impl SelectiveBackwardConfig {
    /// Maximum β: beyond it, less than one sample in seventeen is trained on, and selection takes nearly all
    /// of the work.
    const BETA_MAX: f64 = 16.0;
    /// Minimum losses for a percentile: steps of three percent.
    pub const HISTORY_MIN: u32 = 32;
    /// Maximum losses for a percentile: sorted in each step.
    const HISTORY_MAX: u32 = 1 << 16;
    /// Maximum age of a loss in epochs: a model learns little from a sample seen so often.
    const EPOCHS_MAX: u32 = 1000;

    /// The paper's value.
    fn usual_history() -> u32 {
        1024
    }

    fn usual_full_epochs() -> u32 {
        1
    }

    /// Returns the epochs for which a loss is valid; 0: computed each time.
    #[must_use]
    pub fn reused_for(&self) -> u32 {
        match self.mode {
            SelectionMode::Fresh => 0,
            SelectionMode::Stale => self.stale_epochs.unwrap_or(2),
        }
    }

    pub(super) fn check_for(&self, config: &RunConfig) -> Result<(), ConfigError> {
        let refuse = |key, value: &dyn ToString, reason: &str| {
            Err(ConfigError::value(key, value.to_string(), reason.to_owned()))
        };
        if !(f64::MIN_POSITIVE..=Self::BETA_MAX).contains(&self.beta) {
            let reason = "must lie above 0, and be 16 at most: 1 / (beta + 1) of the samples are trained on, and 1 to 3 are usual";
            return refuse("train.selective_backward.beta", &self.beta, reason);
        }
        if !(Self::HISTORY_MIN..=Self::HISTORY_MAX).contains(&self.history) {
            let reason =
                "is the number of losses that a loss is compared with: must lie between 32 and 65536";
            return refuse("train.selective_backward.history", &self.history, reason);
        }
        if let Some(epochs) = self.stale_epochs {
            let key = "train.selective_backward.stale_epochs";
            if self.mode == SelectionMode::Fresh {
                let reason =
                    "with mode = \"fresh\" no loss is used again: take mode = \"stale\", or leave it out";
                return refuse(key, &epochs, reason);
            }
            if !(1..=Self::EPOCHS_MAX).contains(&epochs) {
                return refuse(key, &epochs, "must lie between 1 and 1000; 2 or 3 are usual");
            }
        }
        if self.full_epochs > Self::EPOCHS_MAX {
            return refuse("train.selective_backward.full_epochs", &self.full_epochs, "must be 1000 at most");
        }
        let key = "train.selective_backward.beta";
        if config.privacy.is_some() {
            let reason = "which samples are selected follows from the data, and is told by how many they are, which [privacy] adds no noise to: leave out one of \
                          the two tables";
            return refuse(key, &self.beta, reason);
        }
        if config.secure_aggregation.is_some() {
            let reason = "a site that has selected nothing has nothing to contribute, and with [secure_aggregation] no round counts that a site is missing in: \
                          leave out one of the two tables";
            return refuse(key, &self.beta, reason);
        }
        if config.sync.apply == Application::FrozenAdamw {
            let reason = "a step in which nobody has selected anything would put zeros in the momentum's place, which is exchanged with preset = \"onebit-adam\": \
                          take another preset, or leave this table out";
            return refuse(key, &self.beta, reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 10\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n[train.selective_backward]\n";

    fn parse(lines: &str) -> Result<SelectiveBackwardConfig, String> {
        let config = RunConfig::parse(&format!("{SMALL}{lines}")).map_err(|error| error.to_string())?;
        let written = config.to_toml().unwrap();
        assert_eq!(RunConfig::parse(&written).unwrap(), config, "{written}");
        Ok(config.train.selective_backward.unwrap())
    }

    #[test]
    fn beta_is_enough_and_the_rest_is_as_in_the_paper() {
        let selective = parse("beta = 2").unwrap();
        let usual = SelectiveBackwardConfig {
            beta: 2.0,
            history: 1024,
            mode: SelectionMode::Fresh,
            stale_epochs: None,
            importance: false,
            full_epochs: 1,
        };
        assert_eq!(selective, usual);
        assert_eq!(selective.reused_for(), 0);
        assert_eq!(parse("beta = 2\nmode = \"stale\"").unwrap().reused_for(), 2);
        assert_eq!(parse("beta = 2\nmode = \"stale\"\nstale_epochs = 3").unwrap().reused_for(), 3);
    }

    #[test]
    fn the_example_is_a_whole_run() {
        let config = RunConfig::parse(include_str!("../../../examples/selective.toml")).unwrap();
        assert_eq!(config.train.selective_backward.unwrap().reused_for(), 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name_and_says_what_would() {
        for (lines, told) in [
            ("beta = 0", "beta = 0: must lie above 0"),
            ("beta = nan", "beta = NaN: must lie above 0"),
            ("beta = 17", "beta = 17: must lie above 0, and be 16 at most"),
            ("beta = 1\nhistory = 31", "history = 31: is the number of losses"),
            ("beta = 1\nstale_epochs = 2", "stale_epochs = 2: with mode = \"fresh\" no loss is used again"),
            ("beta = 1\nmode = \"stale\"\nstale_epochs = 0", "stale_epochs = 0: must lie between 1"),
            ("beta = 1\nfull_epochs = 1001", "full_epochs = 1001: must be 1000 at most"),
            (
                "beta = 1\n[privacy]\nclip = 1\nnoise = 1\ndelta = 1e-6\n[sync]\npreset = \"diloco\"",
                "beta = 1: which samples are selected",
            ),
            (
                "beta = 1\n[secure_aggregation]\nrange = 16.0\n[sync]\npreset = \"diloco\"\nresult = \"mean\"\nnorm_limit = 0",
                "beta = 1: a site that has selected nothing",
            ),
            ("beta = 1\n[sync]\npreset = \"onebit-adam\"", "beta = 1: a step in which nobody has selected"),
        ] {
            let message = parse(lines).unwrap_err();
            assert!(message.starts_with(&format!("train.selective_backward.{told}")), "{lines}: {message}");
        }
        assert!(parse("betta = 1").unwrap_err().contains("did you mean `beta`?"));
        assert!(parse("mode = \"stale\"").unwrap_err().contains("beta"));
    }
}
