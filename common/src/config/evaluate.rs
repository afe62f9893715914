//! `[evaluate]`: consequences of the held-out loss.

use serde::{Deserialize, Serialize};

use super::{ConfigError, Retention, RunConfig, TasksConfig};
use crate::id::Round;

/// Checkpoints of evaluations without a verdict that are kept at most: the coordinator may be away.
const UNJUDGED_MAX: usize = 4;

/// `[evaluate]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluateConfig {
    /// Keep the checkpoint with the lowest held-out loss. A checkpoint then follows each evaluation (`train.evaluate_every_rounds`). Default: no.
    pub keep_best: bool,
    /// End the run after so many evaluations in a row without an improvement. Absent: it trains all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u32>,
    /// Least decrease of the held-out loss that `patience` counts as an improvement, nats per token or image. Default: 0.
    pub min_delta: f64,
    /// Questions that are scored with each evaluation. Absent: none.
    #[serde(skip_serializing_if = "super::sections::is_default")]
    pub tasks: TasksConfig,
}

impl EvaluateConfig {
    /// Whether losses have consequences.
    #[must_use]
    pub fn judges(&self) -> bool {
        self.keep_best || self.patience.is_some()
    }
}

/// Checkpoints that workers keep for their held-out loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestCheckpoints {
    /// The best one, and a better one that is still being written.
    pub rounds: [Option<Round>; 2],
    /// The last evaluation with a verdict.
    pub judged: Round,
}

impl BestCheckpoints {
    pub(super) fn has(&self, next_round: Round) -> bool {
        self.rounds.contains(&Some(next_round))
    }

    /// Returns the newest ones without a verdict, with an evaluation every so many rounds.
    pub(super) fn unjudged(&self, newest_first: &[Round], every: u64) -> Vec<Round> {
        let waits = |round: &&Round| every > 0 && **round > self.judged && round.0.is_multiple_of(every);
        newest_first.iter().filter(waits).take(UNJUDGED_MAX).copied().collect()
    }
}

impl RunConfig {
    /// Whether an evaluation precedes this round.
    #[must_use]
    pub fn evaluates_before(&self, next_round: Round) -> bool {
        let every = self.train.evaluate_every_rounds;
        every > 0 && next_round.0.is_multiple_of(every)
    }

    /// Whether the configuration has a checkpoint before this round.
    #[must_use]
    pub fn checkpoints_before(&self, next_round: Round) -> bool {
        let every = self.checkpoint.every_rounds;
        let is_regular = every > 0 && next_round.0.is_multiple_of(every);
        is_regular || self.evaluate.keep_best && self.evaluates_before(next_round)
    }

    /// Returns the most rounds between checkpoints; 0: there are none.
    #[must_use]
    pub fn checkpoint_spacing(&self) -> u64 {
        match self.checkpoint.every_rounds {
            0 if self.evaluate.keep_best => self.train.evaluate_every_rounds,
            regular => regular,
        }
    }

    /// Returns the retention of checkpoints.
    #[must_use]
    pub fn retention(&self, best: BestCheckpoints) -> Retention {
        let judged_every = if self.evaluate.keep_best { self.train.evaluate_every_rounds } else { 0 };
        Retention { best, judged_every, ..self.checkpoint.retention() }
    }

    pub(super) fn check_evaluate(&self) -> Result<(), ConfigError> {
        self.check_tasks()?;
        let EvaluateConfig { keep_best, patience, min_delta, .. } = self.evaluate;
        if patience == Some(0) {
            let reason = "must be at least 1; leave it out to train all steps";
            return Err(ConfigError::value("evaluate.patience", 0, reason));
        }
        if !(0.0..=f64::MAX).contains(&min_delta) {
            return Err(ConfigError::value("evaluate.min_delta", min_delta, "must be at least 0"));
        }
        if min_delta > 0.0 && patience.is_none() {
            let reason = "counts for evaluate.patience, which is not there: set it, or leave this out";
            return Err(ConfigError::value("evaluate.min_delta", min_delta, reason));
        }
        let (key, value) = match patience {
            Some(patience) => ("evaluate.patience", patience.to_string()),
            None if keep_best => ("evaluate.keep_best", "true".to_owned()),
            None => return Ok(()),
        };
        let lacks = if self.train.evaluate_every_rounds == 0 {
            "needs evaluations during the run: set train.evaluate_every_rounds, such as 40"
        } else if self.train.evaluate_batches == 0 {
            "needs held-out batches, and train.evaluate_batches = 0: set 8"
        } else if self.data.held_out_share() == 0.0 && self.data.validation.is_empty() {
            "needs held-out data: set data.validation_share, such as 0.05, or data.validation"
        } else if !self.reports_losses() {
            "needs the held-out loss, which a private run does not report: leave it out"
        } else {
            return Ok(());
        };
        Err(ConfigError::value(key, value, lacks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "[run]\nname = \"a\"\nworkers = 2\nsteps = 99\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n[data]\npath = \"a\"\nsequence_length = 8\n";

    fn with(train: &str, evaluate: &str) -> Result<RunConfig, String> {
        let text = format!("{SMALL}[train]\n{train}\n[evaluate]\n{evaluate}\n");
        RunConfig::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn values_without_a_meaning_are_refused_with_the_remedy() {
        let every = "evaluate_every_rounds = 5";
        for (train, evaluate, key, remedy) in [
            (every, "patience = 0", "evaluate.patience", "at least 1"),
            ("", "patience = 3", "evaluate.patience", "set train.evaluate_every_rounds"),
            ("", "keep_best = true", "evaluate.keep_best", "set train.evaluate_every_rounds"),
            (every, "min_delta = 0.1", "evaluate.min_delta", "evaluate.patience"),
            (every, "patience = 1\nmin_delta = -0.1", "evaluate.min_delta", "at least 0"),
            (every, "patience = 1\nmin_delta = nan", "evaluate.min_delta", "at least 0"),
            ("evaluate_every_rounds = 5\nevaluate_batches = 0", "patience = 1", "evaluate.patience", "set 8"),
        ] {
            let error = with(train, evaluate).unwrap_err();
            assert!(error.contains(key) && error.contains(remedy), "{error}");
        }
        let config = with(every, "patience = 3\nmin_delta = 0.01\nkeep_best = true").unwrap();
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        let plain = RunConfig::parse(SMALL).unwrap();
        assert!(!plain.to_toml().unwrap().contains("[evaluate]"), "it is written as before");
    }

    #[test]
    fn a_checkpoint_follows_each_evaluation_of_a_run_that_keeps_the_best() {
        let at = |evaluate: &str| -> Vec<u64> {
            let config = with("evaluate_every_rounds = 8", evaluate).unwrap();
            (1..=40).filter(|next| config.checkpoints_before(Round(*next))).collect()
        };
        assert_eq!(at(""), [20, 40]);
        assert_eq!(at("keep_best = true"), [8, 16, 20, 24, 32, 40]);
    }

    #[test]
    fn the_best_and_those_without_a_verdict_are_kept_besides_the_newest() {
        let config = with("evaluate_every_rounds = 10", "keep_best = true").unwrap();
        let rounds: Vec<Round> = (1..=10).rev().map(|n| Round(10 * n)).collect();
        let gone = |best, judged| -> Vec<u64> {
            let best = BestCheckpoints { rounds: [best, None], judged: Round(judged) };
            config.retention(best).surplus(&rounds, Round(100)).map(|round| round.0).collect()
        };
        assert_eq!(gone(Some(Round(30)), 100), [80, 70, 60, 50, 40, 20, 10]);
        assert_eq!(gone(Some(Round(30)), 70), [70, 60, 50, 40, 20, 10]);
        assert_eq!(gone(None, 0), [60, 50, 40, 30, 20, 10], "of all without a verdict, the newest");
    }
}
