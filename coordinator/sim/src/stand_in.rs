//! Small stand-ins for what a simulation does not compute: the model's values and their encoding.

use anyhow::Context as _;
use longhaul_common::config::{
    Application, ResultForm, RobustRule, RunConfig, SelectionRule, Source, Transform, ValueFormat, WithinSite,
};
use longhaul_common::model::ModelSpec;
use longhaul_common::model::tiny::tiny_mlp;

/// The model of each rank: the whole model as a small classifier, or the parts of a narrow language model with the run's layers.
///
/// # Errors
/// The model cannot be cut as the configuration says.
pub fn specs(config: &RunConfig) -> anyhow::Result<Vec<ModelSpec>> {
    if !config.parallel.is_divided() {
        return Ok(vec![tiny_mlp()]);
    }
    let mut model = config.model.clone();
    let heads = config.parallel.tensor.max(1);
    (model.width, model.heads, model.context, model.vocabulary) = (4 * heads, heads, 8, Some(8 * heads));
    (model.kv_heads, model.feed_forward_width) = (None, None);
    let spec = ModelSpec::resolve(&model, 8 * heads)?;
    spec.parts(&config.parallel, 8).context("the model cannot be cut so")
}

/// The run as its members compute it: rounds, overlap, warm-up and deadlines are the run's. Contributions are plain deltas or gradients, without the
/// transforms and masks that need the real model.
pub fn members_config(config: &RunConfig) -> RunConfig {
    let mut config = config.clone();
    let sync = &mut config.sync;
    (sync.within_site, sync.transform) = (WithinSite::Direct, Transform::None);
    (sync.adapt, sync.look_ahead, sync.robust) = (false, false, RobustRule::None);
    // Few values are not worth selecting.
    (sync.selection, sync.values, sync.warmup_values) =
        (SelectionRule::All, ValueFormat::F32, ValueFormat::F32);
    (sync.result, sync.random_keep) = (ResultForm::Bundle, sync.chunk);
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
