//! Fashion-MNIST in a convolutional net: time to 1.1 times the error that training with all images ends with (Jiang et al. 2019, arXiv 1910.00762, figure 5).

use std::iter;

use anyhow::Result;
use longhaul_common::config::{ModelConfig, ModelKind, SelectionMode, TrainConfig};
use longhaul_common::model::ModelSpec;

use crate::course::{Course, Outcome, Way, error_of, selective};
use crate::images::Images;
use crate::print;

const BENCH: &str = "selection/fashion";
const BATCH: u64 = 64;
/// Of the final error with all images.
const TARGET: f64 = 1.1;
/// Of all images, while each is trained on once a visit.
const EPOCHS: u64 = 6;
/// Steps that one of the ways makes before it is the next one's turn.
const TURN: u64 = 200;
/// Images of a quick run.
const QUICK: usize = 500;

pub fn bench(images: Images, test: Images, quick: bool) -> Result<()> {
    // Nothing is selected in the first epoch.
    let (images, test) = if quick { (images.cut_to(QUICK), test.cut_to(QUICK)) } else { (images, test) };
    let epoch = images.len() / BATCH;
    let course = Course {
        spec: ModelSpec::of_images(&ModelConfig::of(ModelKind::Cnn), &images.shape)?,
        images: &images,
        held_out: test.all(),
        batch: BATCH,
        steps: EPOCHS * epoch,
        evaluate_every: (epoch / 4).max(1),
    };
    let train = TrainConfig { micro_batch: BATCH as u32, warmup_steps: 100, ..TrainConfig::default() };
    let betas: &[f64] = if quick { &[1.0] } else { &[0.5, 1.0, 2.0, 3.0] };
    let modes = [SelectionMode::Fresh, SelectionMode::Stale];
    let selected: Vec<_> =
        modes.iter().flat_map(|mode| betas.iter().map(|beta| selective(*beta, *mode))).collect();
    let all = Way { train: &train, selective: None };
    let ways: Vec<_> = iter::once(all)
        .chain(selected.iter().map(|config| Way { train: &train, selective: Some(config) }))
        .collect();
    let outcomes: Vec<_> =
        course.run_in_turns(&ways, TURN)?.into_iter().map(|(outcome, _)| outcome).collect();
    let [all, others @ ..] = &*outcomes else { return Ok(()) };
    let target = TARGET * error_of(&all.last()?.1);
    report("all", all, all, target)?;
    for (config, outcome) in selected.iter().zip(others) {
        let case = format!("beta {} {:?}", config.beta, config.mode).to_lowercase();
        report(&case, outcome, all, target)?;
    }
    Ok(())
}

fn report(case: &str, outcome: &Outcome, all: &Outcome, target: f64) -> Result<()> {
    let (own, others) = (outcome.reached(target), all.reached(target));
    let (seconds, last) = outcome.last()?;
    print(
        BENCH,
        case,
        &[
            ("seconds_to_target", own, "s"),
            ("speedup_to_target", others.zip(own).map(|(all, own)| all / own), "ratio"),
            ("seconds", Some(seconds), "s"),
            ("test_error", Some(error_of(&last)), "ratio"),
            ("selected_share", Some(outcome.share), "ratio"),
        ],
    );
    Ok(())
}
