//! `[privacy]`: clipping and noise on updates before they leave a site.

use serde::{Deserialize, Serialize};

use super::{ConfigError, RunConfig, SyncConfig};
use crate::privacy::GaussianAccountant;

/// Range of clips, which are lengths of updates in f32, with a margin for their squares.
const CLIP_MIN: f64 = 1e-12;
const CLIP_MAX: f64 = 1e12;
/// Below, a single round reveals nearly everything (ε beyond 20 000), and noise on an update would exceed the
/// precision of f32.
const NOISE_MIN: f64 = 0.01;
/// Above, noise dominates an update of any length.
const NOISE_MAX: f64 = 1e6;
/// Below, the tails of the normal distribution that 64 random bits cannot draw would matter.
const DELTA_MIN: f64 = 1e-9;
/// Above, the guarantee may fail altogether once in a hundred runs.
const DELTA_MAX: f64 = 1e-2;

/// `[privacy]`: clips contributions of a site and adds noise, so that they do not reveal the site's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivacyConfig {
    /// Maximum L2 norm of a site's update per round, over all fragments (C).
    pub clip: f64,
    /// Standard deviation of the noise, as a multiple of `clip` (σ/C). Each site adds all of it.
    pub noise: f64,
    /// δ of the reported ε: the probability that the guarantee fails.
    pub delta: f64,
    /// Report losses and gradient norms to the coordinator. They carry no noise.
    #[serde(default)]
    pub report_loss: bool,
}

impl PrivacyConfig {
    /// Returns the standard deviation of the noise on each value, in the update's unit.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.noise * self.clip
    }

    /// Returns ε at `delta` of this many rounds, for the data of a site that contributed to all of them.
    #[must_use]
    pub fn epsilon(&self, rounds: u64) -> f64 {
        GaussianAccountant::of_releases(rounds, self.noise).epsilon(self.delta)
    }

    /// Checks each value, and the combination with `[sync]`.
    pub(crate) fn check(&self, sync: &SyncConfig) -> Result<(), ConfigError> {
        let numbers = [
            (
                "privacy.clip",
                self.clip,
                (CLIP_MIN, CLIP_MAX),
                "it is the longest update that a site may contribute; a round's usual length is a good value",
            ),
            (
                "privacy.noise",
                self.noise,
                (NOISE_MIN, NOISE_MAX),
                "it is the noise's deviation as a multiple of privacy.clip; without noise nothing is hidden (for clipping alone, see \
                 train.gradient_clip)",
            ),
            (
                "privacy.delta",
                self.delta,
                (DELTA_MIN, DELTA_MAX),
                "it is the chance that the guarantee does not hold; 1e-6 is usual",
            ),
        ];
        for (key, value, (low, high), meaning) in numbers {
            if !(low..=high).contains(&value) {
                let reason = format!("must lie between {low:e} and {high:e}: {meaning}");
                return Err(ConfigError::value(key, value, reason));
            }
        }
        if sync.rank > 0 {
            let reason = "each step tells of the data twice, and what noise does to factors goes into a residual on the device that was never \
                          noisy: take rank = 0, or leave [privacy] out";
            return Err(ConfigError::value("sync.rank", sync.rank, reason));
        }
        if sync.parts_after_the_warmup() {
            let reason = "a member that heals is given a first moment that a donor has made of its data without noise, and one clip does not fit \
                          gradients and deltas: take preset = \"diloco\" or inner = \"adamw\", or leave [privacy] out";
            return Err(ConfigError::value("sync.inner", "frozen-adamw", reason));
        }
        let watched = sync.own_keys().into_iter().find(|(key, _)| *key == "sync.backlog_max");
        if let Some((key, value)) = watched.filter(|_| sync.backlog_max > 0.0) {
            let reason = "how much waits in error feedback tells of the data, so a private run does not watch it: take bits_min in its place, or \
                          leave [privacy] out";
            return Err(ConfigError::value(key, value, reason));
        }
        Ok(())
    }
}

impl RunConfig {
    /// Whether the coordinator receives losses, which come from the data without noise.
    #[must_use]
    pub fn reports_losses(&self) -> bool {
        self.privacy.as_ref().is_none_or(|privacy| privacy.report_loss)
    }

    /// Returns the least steps between rounds whose pace follows the links. The budget of privacy is counted
    /// in rounds as configured.
    #[must_use]
    pub fn closest_rounds(&self) -> u64 {
        if self.privacy.is_some() { self.sync.every } else { self.sync.overlap.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RunConfig;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 100\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n";

    fn with(text: &str) -> Result<RunConfig, String> {
        RunConfig::parse(&format!("{SMALL}{text}")).map_err(|error| error.to_string())
    }

    #[test]
    fn without_the_table_nothing_is_private_and_with_it_losses_are_kept_back() {
        let open = with("").unwrap();
        assert_eq!((&open.privacy, open.reports_losses()), (&None, true));
        let config =
            with("[sync]\npreset = \"diloco\"\n[privacy]\nclip = 0.5\nnoise = 4.0\ndelta = 1e-6").unwrap();
        let privacy = config.privacy.clone().unwrap();
        assert_eq!((privacy.deviation(), config.reports_losses()), (2.0, false));
        let told = with("[sync]\npreset = \"diloco\"\n[privacy]\nclip = 0.5\nnoise = 4.0\ndelta = 1e-6\nreport_loss = true").unwrap();
        assert!(told.reports_losses());
        assert!(privacy.epsilon(1) > 0.0 && privacy.epsilon(1) < privacy.epsilon(2));
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
    }

    /// Rounds over a slow link are two steps apart otherwise.
    #[test]
    fn rounds_come_no_closer_than_the_budget_counts_them() {
        let sync = "[sync]\npreset = \"sparse-local\"\nadapt = true";
        let private = with(&format!("{sync}\n[privacy]\nclip = 0.5\nnoise = 4.0\ndelta = 1e-6")).unwrap();
        assert_eq!((private.closest_rounds(), with(sync).unwrap().closest_rounds()), (15, 2));
    }

    #[test]
    fn what_gives_no_privacy_is_refused_with_what_would() {
        for (text, words) in [
            ("[privacy]\nclip = 0.0\nnoise = 1.0\ndelta = 1e-6", "privacy.clip = 0: must lie between"),
            ("[privacy]\nclip = inf\nnoise = 1.0\ndelta = 1e-6", "privacy.clip = inf"),
            ("[privacy]\nclip = 1.0\nnoise = 0.0\ndelta = 1e-6", "without noise nothing is hidden"),
            ("[privacy]\nclip = 1.0\nnoise = nan\ndelta = 1e-6", "privacy.noise = NaN"),
            ("[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 0.0", "1e-6 is usual"),
            ("[privacy]\nclip = 1.0\nnoise = 1.0", "missing field `delta`"),
            ("[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6\nnosie = 1", "did you mean `noise`?"),
            (
                "[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6",
                "sync.inner = frozen-adamw: a member that heals",
            ),
            (
                "[sync]\npreset = \"powersgd\"\n[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6",
                "sync.rank = 4: each step tells of the data twice",
            ),
            (
                "[sync]\npreset = \"sparse-local\"\nadapt = true\nbacklog_max = 4\n[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6",
                "sync.backlog_max = 4.0: how much waits in error feedback tells of the data",
            ),
            (
                "[train]\nshares = \"by_speed\"\n[sync]\npreset = \"diloco\"\n[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6",
                "train.shares = by_speed: what [privacy] costs is reckoned with even shares",
            ),
        ] {
            let message = with(text).unwrap_err();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
