//! `worker sample`: what a trained model writes.

use std::io::Write;

use anyhow::{Context, Result};
use longhaul_common::config::TrainConfig;

use crate::checkpoint;
use crate::cli::SampleArgs;
use crate::engine::{Engine, Sampling, choose_device};

/// Continues the prompt with a checkpoint's model, on standard output.
///
/// # Errors
/// The checkpoint is not there or damaged; the prompt is empty.
pub fn sample(args: &SampleArgs) -> Result<()> {
    let device = choose_device(&args.device)?;
    let model = checkpoint::open_model(&args.checkpoint)?;
    let prompt = model.tokenizer.encode(&args.prompt).map_err(anyhow::Error::msg).context("read --prompt")?;
    anyhow::ensure!(!prompt.is_empty(), "--prompt is empty: give the model a word to begin with");
    let mut engine = Engine::new(&model.spec, &TrainConfig::default(), 1, args.seed, device, None)?;
    engine.load_parameters(&model.parameters)?;
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: (args.top_k > 0).then_some(args.top_k as usize),
        seed: args.seed,
    };
    let tokens = engine.sample(&prompt, args.tokens as usize, sampling)?;
    let text = model.tokenizer.decode(&tokens).map_err(anyhow::Error::msg).context("write the sample")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}{text}", args.prompt).context("print the sample")
}
