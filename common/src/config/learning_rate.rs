//! Keys of `[train]` for the learning rate over the run.

use serde::{Deserialize, Serialize};

use super::error::shown;
use super::{ConfigError, RunConfig, TrainConfig};

/// Share of the steps in the decay of `wsd` (Hägele et al. 2024, arXiv 2405.18392).
const DECAY_SHARE: f64 = 0.2;

/// Course of the learning rate behind the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LearningRateSchedule {
    /// Half a cosine down to the final rate (Loshchilov & Hutter 2017).
    #[default]
    Cosine,
    /// A straight line down to the final rate.
    Linear,
    /// The peak.
    Constant,
    /// Warmup–stable–decay: the peak, then a decay to the final rate in the last steps (Hu et al. 2024, arXiv 2404.06395).
    Wsd,
}

/// Form of the decay of `wsd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayShape {
    /// A straight line.
    #[default]
    Linear,
    /// 1 − √x of the way (Hägele et al. 2024, arXiv 2405.18392).
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

impl TrainConfig {
    /// Returns the most held-out samples of a validation.
    #[must_use]
    pub fn evaluated_samples(&self) -> u64 {
        u64::from(self.evaluate_batches) * u64::from(self.micro_batch)
    }

    /// Returns the samples of `steps` steps, over all workers.
    #[must_use]
    pub fn samples_in(&self, steps: u64) -> u64 {
        steps.saturating_mul(self.batch.into())
    }

    /// Returns the warm-up steps in a run of `steps` steps.
    #[must_use]
    pub fn warmup_steps_in(&self, steps: u64) -> u64 {
        self.warmup_share.map_or(self.warmup_steps, |share| (share * steps as f64).ceil() as u64)
    }

    /// Returns the steps of the decay of `wsd` in a run of `steps` steps.
    #[must_use]
    pub fn decay_steps_in(&self, steps: u64) -> u64 {
        (self.decay_share.unwrap_or(DECAY_SHARE) * steps as f64).ceil() as u64
    }
}

impl RunConfig {
    pub(super) fn check_learning_rate(&self) -> Result<(), ConfigError> {
        let (train, steps) = (&self.train, self.run.steps);
        for (key, share) in
            [("train.warmup_share", train.warmup_share), ("train.decay_share", train.decay_share)]
        {
            if let Some(share) = share.filter(|share| !(0.0..=1.0).contains(share)) {
                return Err(ConfigError::value(key, share, "is a share of the steps: from 0 to 1"));
            }
        }
        let usual = TrainConfig::default();
        if let Some(share) = train.warmup_share.filter(|_| train.warmup_steps != usual.warmup_steps) {
            let reason = "and train.warmup_steps both set the warm-up: remove one of them";
            return Err(ConfigError::value("train.warmup_share", share, reason));
        }
        // Default warm-ups are not the user's choice, so a short run is not refused for them.
        if train.warmup_steps > steps.max(usual.warmup_steps) {
            let reason = format!(
                "the run has {steps} steps, and would never come to its learning rate: a twentieth of them is usual"
            );
            return Err(ConfigError::value("train.warmup_steps", train.warmup_steps, reason));
        }
        self.check_decay()
    }

    fn check_decay(&self) -> Result<(), ConfigError> {
        let (train, steps) = (&self.train, self.run.steps);
        if train.schedule != LearningRateSchedule::Wsd {
            let reason = "only schedule = \"wsd\" has a decay of its own length: take that, or leave it out";
            if let Some(share) = train.decay_share {
                return Err(ConfigError::value("train.decay_share", share, reason));
            }
            if train.decay_shape != DecayShape::default() {
                return Err(ConfigError::value("train.decay_shape", shown(&train.decay_shape), reason));
            }
        }
        let is_constant = train.schedule == LearningRateSchedule::Constant;
        let usual = TrainConfig::default().final_learning_rate_share;
        if is_constant && ![usual, 1.0].contains(&train.final_learning_rate_share) {
            let reason = "schedule = \"constant\" stays at its peak: take another schedule, or leave it out";
            let share = train.final_learning_rate_share;
            return Err(ConfigError::value("train.final_learning_rate_share", share, reason));
        }
        let both = train.warmup_share.unwrap_or(0.0) + train.decay_share.unwrap_or(0.0);
        if both > 1.0 {
            let reason =
                format!("with train.warmup_share it is {both} of the {steps} steps: at most 1 together");
            return Err(ConfigError::value("train.decay_share", train.decay_share.unwrap_or(0.0), reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 100\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n[train]\n";

    fn with(train: &str) -> Result<RunConfig, String> {
        RunConfig::parse(&format!("{SMALL}{train}")).map_err(|error| error.to_string())
    }

    #[test]
    fn shares_are_of_the_runs_steps_and_round_up() {
        let train = with("schedule = \"wsd\"\nwarmup_share = 0.015\ndecay_share = 0.105").unwrap().train;
        assert_eq!((train.warmup_steps_in(100), train.decay_steps_in(100)), (2, 11));
        let usual = with("").unwrap().train;
        assert_eq!((usual.warmup_steps_in(100), usual.decay_steps_in(100)), (20, 20));
    }

    #[test]
    fn keys_that_contradict_each_other_or_have_no_effect_are_refused() {
        for (train, words) in [
            ("warmup_share = 1.5", "train.warmup_share = 1.5: is a share"),
            ("warmup_share = 0.1\nwarmup_steps = 7", "train.warmup_share = 0.1: and train.warmup_steps"),
            ("warmup_steps = 101", "train.warmup_steps = 101: the run has 100 steps"),
            ("decay_share = 0.1", "train.decay_share = 0.1: only schedule = \"wsd\""),
            ("decay_shape = \"1-sqrt\"", "train.decay_shape = 1-sqrt: only schedule = \"wsd\""),
            (
                "schedule = \"constant\"\nfinal_learning_rate_share = 0.2",
                "train.final_learning_rate_share = 0.2: schedule = \"constant\"",
            ),
            (
                "schedule = \"wsd\"\nwarmup_share = 0.6\ndecay_share = 0.5",
                "train.decay_share = 0.5: with train.warmup_share",
            ),
        ] {
            let message = with(train).unwrap_err();
            assert!(message.starts_with(words), "{train}: {message}");
        }
        assert!(with("schedule = \"cosin\"").unwrap_err().contains("cosine"));
    }

    #[test]
    fn a_run_without_these_keys_is_written_as_before() {
        let text = with("").unwrap().to_toml().unwrap();
        assert!(
            !["schedule = \"cosine\"", "warmup_share =\n", "decay_"].iter().any(|key| text.contains(key)),
            "{text}"
        );
        let config = with("schedule = \"wsd\"\ndecay_shape = \"1-sqrt\"\nwarmup_share = 0.1").unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
    }
}
