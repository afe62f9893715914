//! How often a run takes its samples.

use longhaul_common::config::DataConfig;
use longhaul_data::SourceSummary;

/// Fewest epochs of a run that are told.
pub(crate) const EPOCHS_TOLD_MIN: u64 = 4;

/// Returns how often each sample of a source comes among `drawn`; `None`: fewer times, or no source has a weight, so that all come as often.
pub(crate) fn times(source: &SourceSummary, drawn: u64, config: &DataConfig) -> Option<u64> {
    let share = source.share.filter(|_| source.samples > 0 && has_weights(config))?;
    let times = (drawn as f64 * share / source.samples as f64).round() as u64;
    (times >= EPOCHS_TOLD_MIN).then_some(times)
}

/// Whether a source has a weight.
pub(crate) fn has_weights(config: &DataConfig) -> bool {
    config.training().iter().any(|source| source.weight.is_some())
}
