//! MNIST in a perceptron whose backward passes use 80 of 500 columns (Sun et al. 2017, arXiv 1706.06197,
//! section 4).

use anyhow::Result;
use longhaul_common::config::{ModelConfig, ModelKind, SparseBackwardConfig, SparseMode, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_engine::count_multiplications;

use super::course::{Course, SEED, Way};
use super::samples::Images;
use crate::kit::recorder::Recorder;
use crate::kit::stats::median;

const BENCH: &str = "selection/mnist";
const BATCH: u64 = 50;
/// 80 of 500.
const KEEP: f64 = 0.16;
/// Epochs over all images.
const EPOCHS: u64 = 20;
/// Alternating turns of both variants.
const TURNS: u64 = 80;

pub fn bench(images: Images, test: Images, quick: bool) -> Result<()> {
    // Four of five pixels are black. At −1 they are a large constant that the first layer must learn to
    // remove, which lowers accuracy.
    let [images, test] = [images, test].map(Images::with_black_at_zero);
    let epoch = images.len() / BATCH;
    let course = Course {
        spec: ModelSpec::of_images(&ModelConfig::of(ModelKind::Mlp), &images.shape)?,
        images: &images,
        held_out: test.all(),
        batch: BATCH,
        steps: if quick { 40 } else { EPOCHS * epoch },
        evaluations: if quick { 1 } else { EPOCHS },
    };
    // Adam as in the paper, except for a decaying learning rate: with a constant one, the last epoch is worse
    // than the best.
    let dense = TrainConfig {
        micro_batch: BATCH as u32,
        warmup_steps: 0,
        final_learning_rate_share: 0.0,
        weight_decay: 0.0,
        beta2: 0.999,
        gradient_clip: 0.0,
        ..TrainConfig::default()
    };
    let layers = vec!["*".to_owned()];
    let columns = SparseBackwardConfig { keep: KEEP, mode: SparseMode::Columns, layers };
    let sparse = TrainConfig { sparse_backward: Some(columns), ..dense.clone() };
    let [all_multiplied, multiplied] =
        [&dense, &sparse].map(|train| backward_multiplications(&course, train));
    let ratio = multiplied? as f64 / all_multiplied? as f64;
    let ways = [&dense, &sparse].map(|train| Way { train, selective: None, steps: course.steps });
    let outcomes = course.run_in_turns(&ways, TURNS)?;
    let steps: Vec<f64> = outcomes.iter().map(|(_, turns)| median(turns)).collect();
    let cases = [("all columns", 1.0), ("80 of 500", ratio)];
    for (((case, ratio), (outcome, _)), step_s) in cases.into_iter().zip(&outcomes).zip(&steps) {
        let (seconds, last) = outcome.last()?;
        let best = outcome.evaluations.iter().filter_map(|(_, evaluation)| evaluation.accuracy);
        Recorder::new(BENCH).print_known(
            case,
            &[
                ("accuracy", last.accuracy.map(f64::from), "ratio"),
                ("best_accuracy", best.reduce(f32::max).map(f64::from), "ratio"),
                ("flops_ratio", Some(ratio), "ratio"),
                ("seconds", Some(seconds), "s"),
                ("step_ms", Some(step_s * 1e3), "ms"),
                ("speedup", Some(steps[0] / step_s), "ratio"),
            ],
        );
    }
    Ok(())
}

/// Counts the multiplications of one batch in libtorch: those of a gradient minus those of a forward pass.
fn backward_multiplications(course: &Course<'_>, train: &TrainConfig) -> Result<u64> {
    let (mut engine, batch) = (course.engine(train, course.steps)?, course.images.batch(0..BATCH, SEED));
    let (losses, forwards) = count_multiplications(|| Ok(engine.sample_losses(&batch)))?;
    losses?;
    let (outcome, both) = count_multiplications(|| Ok(engine.gradient(&batch, &mut Vec::new())))?;
    outcome?;
    Ok(both - forwards)
}
