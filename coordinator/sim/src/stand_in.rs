//! Small stand-ins for what a simulation does not compute: the model's values and their encoding.

use anyhow::Context as _;
use longhaul_common::config::{Application, RunConfig, SelectionRule, Source, Transform, WithinSite};
use longhaul_common::model::ModelSpec;
use longhaul_common::model::tiny::tiny_mlp_of;

/// Doublings of the width of a stand-in for a language model.
const WIDTHS: u32 = 8;

/// Values of each rank's model, at least: a fragment for each of two sites, as with one owner alone the sites would not be alike, and for each group of fragments
/// that take turns.
fn values(config: &RunConfig) -> u64 {
    u64::from(config.sync.fragment_values) * u64::from(config.sync.groups.max(2))
}

/// The run with fragments of one chunk, so that a small model has several.
pub fn with_small_fragments(mut config: RunConfig) -> RunConfig {
    config.sync.fragment_values = config.sync.chunk;
    config
}

/// The model of each rank: the whole model as a classifier with one hidden layer, or the parts of a narrow language model with the run's layers.
///
/// # Errors
/// The model cannot be cut as the configuration says.
pub fn specs(config: &RunConfig) -> anyhow::Result<Vec<ModelSpec>> {
    let least = values(config);
    if !config.parallel.is_divided() {
        return Ok(vec![tiny_mlp_of(least)]);
    }
    let mut model = config.model.clone();
    let heads = config.parallel.tensor.max(1);
    (model.heads, model.context, model.vocabulary) = (heads, 8, Some(8 * heads));
    (model.kv_heads, model.feed_forward_width) = (None, None);
    let mut parts = Vec::new();
    for doublings in 0..WIDTHS {
        model.width = (4 * heads) << doublings;
        let spec = ModelSpec::resolve(&model, 8 * heads)?;
        parts = spec.parts(&config.parallel, 8).context("the model cannot be cut so")?;
        if parts.iter().all(|part| part.parameter_count() >= least) {
            break;
        }
    }
    Ok(parts)
}

/// The run as its members compute it: rounds, overlap, warm-up and deadlines are the run's. Contributions are plain deltas or gradients, without the
/// transforms and masks that need the real model.
pub fn members_config(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    let sync = &mut config.sync;
    (sync.within_site, sync.transform) = (WithinSite::Direct, Transform::None);
    (sync.adapt, sync.look_ahead) = (false, false);
    if sync.selection == SelectionRule::Columns {
        sync.selection = SelectionRule::All;
    }
    if sync.source == Source::Momentum {
        sync.source = Source::Gradient;
    }
    if sync.source.is_gradient() {
        sync.apply = Application::Inner;
    }
    (config.privacy, config.secure_aggregation) = (None, None);
    (config.checkpoint.to, config.checkpoint.endpoint) = (None, None);
    config
}
