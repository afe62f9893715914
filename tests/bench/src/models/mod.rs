//! Steps of every family beside transformers, and of adapters beside PEFT.

mod cases;
mod reference;

use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, Result};
use longhaul_checkpoint::{BaseModel, ExportType, WholeModel, export};
use longhaul_common::config::{LoraConfig, TrainConfig};
use longhaul_common::model::draw_parameters;
use longhaul_engine::models::FrozenWeights;
use longhaul_engine::{Batch, Engine, choose_device, keep_freed_memory};

use self::cases::{Case, LENGTH, SEQUENCES};
use self::reference::Reference;
use crate::kit::args::{Only, Python, Quick};
use crate::kit::clock::seconds_of;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::kit::stats::median;

/// Steps before the measured ones: the first allocate.
const WARM_UP: u32 = 2;

/// A training step of every family, and of adapters, beside transformers' and PEFT's (--python)
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    python: Python,
    #[command(flatten)]
    only: Only,
}

/// Measures each case in turns with the reference's process.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    let python = args.python.python.as_deref();
    let python = python.context("give a Python that has transformers and PEFT: --python PROGRAM")?;
    let steps = args.quick.choose(4, 20);
    for case in cases::all(args.quick.quick).into_iter().filter(|case| args.only.wants(&case.name)) {
        progress(&case.name);
        measure(&case, python, steps)?;
    }
    Ok(())
}

fn measure(case: &Case, python: &Path, steps: u32) -> Result<()> {
    let folder = tempfile::tempdir().context("create a folder for the model")?;
    let out = folder.path().join("model");
    let parameters = draw_parameters(&case.spec, 1);
    let whole = WholeModel {
        path: case.name.clone(),
        spec: case.spec.clone(),
        parameters,
        companions: Default::default(),
    };
    export(&whole, &out, ExportType::F32, u64::MAX, |_, _| {})?;
    let mut reference = Reference::start(python, &out, case)?;
    let mut engine = engine(case, &out, steps + WARM_UP)?;
    let batch = batch(case.spec.vocabulary);
    let (mut own, mut theirs, mut apart) = (Vec::new(), Vec::new(), 0.0_f64);
    for step in 0..steps + WARM_UP {
        let mut loss = 0.0;
        let seconds = seconds_of(|| {
            loss = engine.train_step(u64::from(step), &batch)?.loss;
            Ok(())
        })?;
        let of_reference = reference.step()?;
        if step == 0 {
            apart = (f64::from(loss) - of_reference.loss).abs() / of_reference.loss;
        }
        if step >= WARM_UP {
            own.push(seconds);
            theirs.push(of_reference.seconds);
        }
    }
    let recorder = Recorder::new("models").with("steps", steps);
    let parameters = case.spec.parameter_count();
    recorder.print(&case.name, "parameters", parameters, "");
    recorder.print(&case.name, "step_s", median(&own), "s");
    recorder.print(&case.name, "step_transformers_s", median(&theirs), "s");
    recorder.print(&case.name, "time_over_transformers", median(&own) / median(&theirs), "");
    recorder.print(&case.name, "loss_error", apart, "");
    Ok(())
}

fn engine(case: &Case, folder: &Path, steps: u32) -> Result<Engine> {
    let train = TrainConfig {
        micro_batch: SEQUENCES,
        precision: case.precision,
        learning_rate: 1e-3,
        lora: case.rank.map(|rank| LoraConfig {
            rank,
            alpha: None,
            use_rslora: false,
            use_dora: false,
            targets: vec![LoraConfig::ALL_LINEAR.to_owned()],
            base: Default::default(),
        }),
        ..TrainConfig::default()
    };
    let (device, threads, steps) = (choose_device("cpu")?, NonZeroU32::new(1), steps.into());
    let spec = case.spec.clone().tuned(&train)?;
    let mut frozen = FrozenWeights::of(&spec, device);
    let base = BaseModel::open(folder, |_, _| {})?;
    let is_frozen = |name: &str| case.rank.is_some() && spec.frozen().iter().any(|of| of.name == name);
    base.for_each(&spec, is_frozen, |tensor, values| Ok(frozen.add(tensor, &values)?))?;
    let first = draw_parameters(&spec, 1);
    Ok(Engine::with_parameters(&spec, &train, steps, &first, frozen, threads)?)
}

/// The reference's tokens.
fn batch(vocabulary: u32) -> Batch {
    let mut batch = Batch::new(LENGTH);
    for sequence in 0..SEQUENCES {
        batch.push((0..=LENGTH as u32).map(|place| (place * place + 31 * sequence) % vocabulary));
    }
    batch
}
