//! Our own side's process: `models-own FOLDER SEQUENCES LENGTH PRECISION RANK`. It speaks as `python/models.py` does.
#![allow(clippy::print_stdout, reason = "its answers")]

use std::io::BufRead;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use longhaul_checkpoint::{BaseModel, describe_model};
use longhaul_common::config::{LoraConfig, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_data::LABEL_BIT;
use longhaul_engine::models::{Model, Parameters};
use longhaul_engine::{Batch, Engine, choose_device, keep_freed_memory};
use longhaul_worker::train::first_state;
use serde_json::json;
use tch::{Kind, Tensor};

use super::cases::Work;
use super::side::{Loaded, Step};
use crate::kit::clock::now;
use crate::kit::memory;

/// Steps that the schedule of the learning rate expects.
const STEPS: u64 = 100;

/// Our own process of the bench `models`
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the model.
    folder: PathBuf,
    #[command(flatten)]
    work: Work,
}

/// Loads the model, and answers each line of standard input with one on standard output.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    let began = now();
    let mut engine = engine(&args.folder, args.work)?;
    let loaded =
        Loaded { seconds: began.elapsed().as_secs_f64(), peak_bytes: memory::bytes("self", "VmHWM")? as u64 };
    println!("{}", json!(loaded));
    let batch = batch(engine.spec(), args.work);
    for (step, line) in (0..).zip(std::io::stdin().lock().lines()) {
        let line = line.context("read a question")?;
        let began = now();
        let loss = match line.strip_prefix("logits ") {
            Some(path) => write_logits(&engine, args.work, Path::new(path))?,
            None => engine.train_step(step, &batch)?.loss.into(),
        };
        let step = Step {
            seconds: began.elapsed().as_secs_f64(),
            loss,
            peak_bytes: memory::bytes("self", "VmHWM")? as u64,
        };
        println!("{}", json!(step));
    }
    Ok(())
}

fn engine(folder: &Path, work: Work) -> Result<Engine> {
    let lora = (work.rank > 0).then(|| LoraConfig {
        rank: work.rank,
        alpha: None,
        use_rslora: false,
        use_dora: false,
        targets: vec![LoraConfig::ALL_LINEAR.to_owned()],
        dropout: 0.0,
        base: work.base(),
    });
    let train = TrainConfig {
        micro_batch: work.sequences,
        precision: work.precision,
        learning_rate: 1e-3,
        lora,
        ..TrainConfig::default()
    };
    let (device, threads) = (choose_device("cpu")?, NonZeroU32::new(1));
    let whole = ModelSpec::resolve(&describe_model(folder)?.model, 0)?;
    let spec = whole.clone().tuned(&train)?;
    let base = BaseModel::open(folder, |_, _| {})?;
    let (first, frozen) = first_state(Some(&base), (&whole, &spec), 1, device)?;
    Ok(Engine::with_parameters(&spec, &train, STEPS, &first, frozen, threads)?)
}

/// Every so many tokens, one is masked.
const MASKED_EVERY: u32 = 7;
/// The token in its place.
const MASK: u32 = 4;
/// Tokens below it are special ones.
const FIRST_TOKEN: u32 = 8;

/// The reference's tokens.
fn token(vocabulary: u32, sequence: u32, place: u32) -> u32 {
    FIRST_TOKEN + (place * place + 31 * sequence) % (vocabulary - FIRST_TOKEN)
}

fn batch(spec: &ModelSpec, work: Work) -> Batch {
    let length = work.length as usize;
    let mut batch = if spec.encoder.is_some() { Batch::of_masked(length) } else { Batch::new(length) };
    for sequence in 0..work.sequences {
        let token = |place| token(spec.vocabulary, sequence, place);
        let word = |place: u32| match place.is_multiple_of(MASKED_EVERY) {
            true => i64::from(MASK) | (i64::from(token(place)) + 1) << LABEL_BIT,
            false => token(place).into(),
        };
        match spec.encoder {
            Some(_) => batch.push_masked_words((0..work.length).map(word)),
            None => batch.push((0..=work.length).map(token)),
        }
    }
    batch
}

/// Writes the logits of the first sequence; the model must not have adapters.
fn write_logits(engine: &Engine, work: Work, into: &Path) -> Result<f64> {
    let (spec, mut values) = (engine.spec(), Vec::new());
    engine.parameters_to_host(&mut values)?;
    let parameters = Parameters::new(spec, &values, engine.device())?;
    let model = Model::of_all(spec, &parameters, work.precision)?;
    let tokens: Vec<i64> = (0..work.length).map(|place| token(spec.vocabulary, 0, place).into()).collect();
    let logits = tch::no_grad(|| model.logits(&Tensor::from_slice(&tokens).unsqueeze(0)))?;
    let logits = Vec::<f32>::try_from(logits.to_kind(Kind::Float).flatten(0, -1))?;
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    std::fs::write(into, bytes).with_context(|| format!("write {}", into.display()))?;
    Ok(0.0)
}
