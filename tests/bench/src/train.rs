//! Seconds of a training step.

use std::num::NonZeroU32;

use anyhow::Result;
use longhaul_common::config::{ModelConfig, ModelKind, Optimiser, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_engine::{Batch, Engine, choose_device, keep_freed_memory};

use crate::kit::args::Quick;
use crate::kit::clock::seconds_of;
use crate::kit::recorder::Recorder;
use crate::kit::stats::{Spread, in_turns};

const SEQUENCES: u32 = 8;
const LENGTH: usize = 128;
/// Steps before the measured ones: the first allocate.
const WARM_UP: u32 = 2;

/// The training engine alone
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Name of the model and its batch.
const CASE: &str = "gpt 10.9M b8 t128 1 thread";

/// Measures plain steps, steps whose gradient passes through the host, and the updates of each optimiser.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    let steps: u32 = args.quick.choose(3, 30);
    let mut engine = engine(steps.into(), Optimiser::default())?;
    let batch = batch();
    let mut gradient = Vec::new();
    // The second is the path of the dense strategy.
    let ways = ["step_s", "step_through_host_s"];
    let seconds = in_turns(&ways, -i64::from(WARM_UP)..steps.into(), |way, turn| {
        let step = (turn + i64::from(WARM_UP)).unsigned_abs();
        seconds_of(|| {
            if *way == "step_s" {
                engine.train_step(step, &batch)?;
                return Ok(());
            }
            engine.gradient(&batch, &mut gradient)?;
            Ok(engine.apply_gradient(step, &gradient)?)
        })
    })?;
    for (metric, seconds) in ways.iter().zip(seconds) {
        let Some(Spread { least, median, .. }) = Spread::of(&seconds) else { continue };
        let recorder = Recorder::new("train").with("least", least).with("steps", steps);
        recorder.print(CASE, metric, median, "s");
    }
    updates(steps, &gradient)
}

/// Measures the updates alone, from a gradient on the host.
fn updates(steps: u32, gradient: &[f32]) -> Result<()> {
    let optimisers = [
        (Optimiser::Adamw, "adamw_update_s"),
        (Optimiser::Muon, "muon_update_s"),
        (Optimiser::Sgd, "sgd_update_s"),
        (Optimiser::Lion, "lion_update_s"),
        (Optimiser::Adafactor, "adafactor_update_s"),
    ];
    let mut engines =
        optimisers.iter().map(|(of, _)| engine(steps.into(), *of)).collect::<Result<Vec<_>>>()?;
    let ways: Vec<usize> = (0..optimisers.len()).collect();
    let seconds = in_turns(&ways, -i64::from(WARM_UP)..steps.into(), |&way, turn| {
        let step = (turn + i64::from(WARM_UP)).unsigned_abs();
        seconds_of(|| Ok(engines[way].apply_gradient(step, gradient)?))
    })?;
    for ((_, metric), seconds) in optimisers.iter().zip(seconds) {
        let Some(Spread { least, median, .. }) = Spread::of(&seconds) else { continue };
        let recorder = Recorder::new("train").with("least", least).with("steps", steps);
        recorder.print(CASE, metric, median, "s");
    }
    Ok(())
}

fn engine(steps: u64, optimiser: Optimiser) -> Result<Engine> {
    let config = ModelConfig {
        layers: 6,
        width: 384,
        heads: 6,
        context: LENGTH as u32,
        tied_embeddings: Some(false),
        ..ModelConfig::of(ModelKind::Gpt2)
    };
    let spec = ModelSpec::resolve(&config, 256)?;
    let train = TrainConfig { micro_batch: SEQUENCES, optimiser, ..TrainConfig::default() };
    Ok(Engine::new(&spec, &train, steps, 1, choose_device("cpu")?, NonZeroU32::new(1))?)
}

fn batch() -> Batch {
    let mut batch = Batch::new(LENGTH);
    for sequence in 0..SEQUENCES {
        batch.push((0..=LENGTH as u32).map(|i| (i * i + 31 * sequence) % 256));
    }
    batch
}
