//! `[secure_aggregation]`: owners see only the sum of all contributions.

use serde::{Deserialize, Serialize};

use super::error::shown;
use super::sync::{ResultForm, RobustRule, SelectionRule, Transform};
use super::{ConfigError, SyncConfig, ValueFormat};

/// Far beyond any update, and a limit at which f64 still has precision to spare.
const RANGE_MAX: f64 = 1e12;

/// `[secure_aggregation]`: hides a site's contribution under masks that cancel in the sum over all sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecureAggregationConfig {
    /// Maximum magnitude of a value; larger values are clipped. The sum's resolution is about 2⁻³¹ of it.
    pub range: f64,
}

impl SecureAggregationConfig {
    /// Checks the value, and the combination with `[sync]`.
    pub(crate) fn check(&self, sync: &SyncConfig) -> Result<(), ConfigError> {
        if !(self.range > 0.0 && self.range <= RANGE_MAX) {
            let reason = format!(
                "must be more than 0 and at most {RANGE_MAX:e}: it is the largest magnitude of a value, beyond which values are cut off"
            );
            return Err(ConfigError::value("secure_aggregation.range", self.range, reason));
        }
        let formats = [sync.values, if sync.has_warmup() { sync.warmup_values } else { sync.values }];
        let refuse = |key, value: &dyn ToString, reason: &str| {
            let reason = format!("{reason}, or leave [secure_aggregation] out");
            Err(ConfigError::value(key, value.to_string(), reason))
        };
        if sync.result == ResultForm::Bundle {
            let reason = "an owner sees the sum and nothing else: take result = \"mean\"";
            refuse("sync.result", &shown(&sync.result), reason)
        } else if sync.selection != SelectionRule::All {
            let reason = "sites must send the same positions for their values to add up: take selection = \"all\", with random_keep for fewer \
                          (preset = \"diloco\" or \"dense\" has that)";
            refuse("sync.selection", &shown(&sync.selection), reason)
        } else if sync.warmup_selects() {
            let reason = "sites must send the same positions for their values to add up: take warmup_keep = chunk, or no warm-up";
            refuse("sync.warmup_keep", &sync.warmup_keep, reason)
        } else if formats.iter().any(|format| *format != ValueFormat::F32) {
            let reason = "masks are for whole numbers of 32 bits, which take the place of a format: take values = \"f32\"";
            refuse("sync.values", &sync.values, reason)
        } else if sync.rank > 0 || sync.transform != Transform::None {
            refuse("sync.rank", &sync.rank, "take rank = 0 and transform = \"none\"")
        } else if sync.adapt {
            refuse("sync.adapt", &true, "the bits of a masked value are always 32: take adapt = false")
        } else if sync.norm_limit != 0.0 {
            let reason = "nobody can see the length of a masked contribution: take norm_limit = 0";
            refuse("sync.norm_limit", &sync.norm_limit, reason)
        } else if sync.robust != RobustRule::None {
            let reason = "nobody can compare masked contributions: take robust = \"none\"";
            refuse("sync.robust", &shown(&sync.robust), reason)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RunConfig;

    const SMALL: &str = "[run]\nname = \"small\"\nworkers = 2\nsteps = 100\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\n\
                         heads = 1\ncontext = 8\n[data]\npath = \"text.txt\"\nsequence_length = 8\n\
                         [secure_aggregation]\nrange = 1.0\n[sync]\n";

    fn with(sync: &str) -> Result<RunConfig, String> {
        RunConfig::parse(&format!("{SMALL}{sync}")).map_err(|error| error.to_string())
    }

    #[test]
    fn strategies_whose_values_add_up_may_be_masked() {
        for sync in [
            "preset = \"diloco\"\nnorm_limit = 0",
            "preset = \"dense\"\nnorm_limit = 0\nresult_values = \"bf16\"",
            "preset = \"diloco\"\nnorm_limit = 0\nrandom_keep = 64\nerror_decay = 1",
            "preset = \"diloco\"\nnorm_limit = 0\nrandom_keep = 64\nerror_decay = 1\nresult = \"union\"",
        ] {
            let config = with(sync).unwrap();
            assert_eq!(config.secure_aggregation.as_ref().map(|masks| masks.range), Some(1.0));
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn strategies_whose_values_do_not_are_refused_with_what_would() {
        for (sync, words) in [
            ("preset = \"streaming-diloco\"", "sync.result = bundle: an owner sees the sum and nothing else"),
            (
                "preset = \"sparse-local\"\nresult = \"mean\"",
                "sync.selection = top-k: sites must send the same positions",
            ),
            ("preset = \"cocktail\"\nvalues = \"f32\"", "sync.selection = top-k"),
            (
                "preset = \"diloco\"\nwarmup_rounds = 2\nwarmup_keep = 64\nerror_decay = 1",
                "sync.warmup_keep = 64",
            ),
            ("preset = \"diloco\"\nvalues = \"bf16\"", "sync.values = bf16"),
            (
                "preset = \"diloco\"\nwarmup_rounds = 2\nwarmup_keep = 4096\nwarmup_values = \"int8\"",
                "sync.values = f32",
            ),
            ("preset = \"powersgd\"\nnorm_limit = 0", "sync.rank = 4"),
            ("preset = \"diloco\"", "take norm_limit = 0, or leave [secure_aggregation] out"),
            ("preset = \"diloco\"\nnorm_limit = 0\nrobust = \"clip\"", "sync.robust = clip"),
        ] {
            let message = with(sync).unwrap_err();
            assert!(message.contains(words), "{sync}: {message}");
        }
        let message = RunConfig::parse(&SMALL.replace("1.0", "0.0")).unwrap_err().to_string();
        assert!(message.starts_with("secure_aggregation.range = 0: must be more than 0"), "{message}");
    }
}
