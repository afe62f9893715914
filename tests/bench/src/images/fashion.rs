//! Fashion-MNIST in a convolutional net: time to 1.1 times the final error of training with all images (Jiang
//! et al. 2019, arXiv 1910.00762, figure 5).

use std::iter;

use anyhow::Result;
use longhaul_common::config::{ModelConfig, ModelKind, SelectionMode, TrainConfig};
use longhaul_common::model::ModelSpec;

use super::course::{Course, Outcome, Way, error_of, selective};
use super::samples::Images;
use crate::kit::recorder::Recorder;

const BENCH: &str = "selection/fashion";
const BATCH: u64 = 64;
/// Multiple of the final error with all images.
const TARGET: f64 = 1.1;
/// Epochs of each variant.
const EPOCHS: u64 = 6;
/// Alternating turns of the variants.
const TURNS: u64 = 24;
/// Images of a quick run.
const QUICK: usize = 500;

pub fn bench(images: Images, test: Images, quick: bool, constant_rate: bool) -> Result<()> {
    // The first epoch has no selection.
    let (images, test) = if quick { (images.cut_to(QUICK), test.cut_to(QUICK)) } else { (images, test) };
    let epoch = images.len() / BATCH;
    let course = Course {
        spec: ModelSpec::of_images(&ModelConfig::of(ModelKind::Cnn), &images.shape)?,
        images: &images,
        held_out: test.all(),
        batch: BATCH,
        steps: EPOCHS * epoch,
        evaluations: 4 * EPOCHS,
    };
    let mut train = TrainConfig { micro_batch: BATCH as u32, warmup_steps: 100, ..TrainConfig::default() };
    if constant_rate {
        train.final_learning_rate_share = 1.0;
    }
    let betas: &[f64] = if quick { &[1.0] } else { &[0.5, 1.0, 2.0, 3.0] };
    let modes = [SelectionMode::Fresh, SelectionMode::Stale];
    let selected: Vec<_> =
        modes.iter().flat_map(|mode| betas.iter().map(|beta| selective(*beta, *mode))).collect();
    // Steps that examine all images this often, with no selection in the first epoch.
    let steps = |beta: f64| epoch + ((EPOCHS - 1) as f64 * epoch as f64 / (beta + 1.0)).round() as u64;
    let way = |selective, beta| Way { train: &train, selective, steps: steps(beta) };
    // Variants with all images in as few steps show the benefit of selection. With a constant rate they are
    // prefixes of the first one.
    let fewer = if constant_rate { &[] } else { betas };
    let ways: Vec<_> = iter::once(0.0)
        .chain(fewer.iter().copied())
        .map(|beta| way(None, beta))
        .chain(selected.iter().map(|config| way(Some(config), config.beta)))
        .collect();
    let outcomes: Vec<_> =
        course.run_in_turns(&ways, TURNS)?.into_iter().map(|(outcome, _)| outcome).collect();
    let [all, others @ ..] = &*outcomes else { return Ok(()) };
    let target = TARGET * error_of(&all.last()?.1);
    report("all", all, all, target)?;
    let fewer = fewer.iter().map(|beta| format!("all in as many steps as beta {beta}"));
    let selected =
        selected.iter().map(|config| format!("beta {} {:?}", config.beta, config.mode).to_lowercase());
    for (case, outcome) in fewer.chain(selected).zip(others) {
        report(&case, outcome, all, target)?;
    }
    Ok(())
}

fn report(case: &str, outcome: &Outcome, all: &Outcome, target: f64) -> Result<()> {
    let (own, others) = (outcome.reached(target), all.reached(target));
    let (seconds, last) = outcome.last()?;
    Recorder::new(BENCH).print_known(
        case,
        &[
            ("seconds_to_target", own, "s"),
            ("speedup_to_target", others.zip(own).map(|(all, own)| all / own), "ratio"),
            ("seconds", Some(seconds), "s"),
            ("steps", Some(outcome.steps as f64), ""),
            ("test_error", Some(error_of(&last)), "ratio"),
            ("selected_share", Some(outcome.share), "ratio"),
        ],
    );
    Ok(())
}
