//! This machine's speed with a run's model.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_common::config::{ImageConfig, ModelConfig, RunConfig};
use longhaul_common::model::{BlockCost, ModelSpec};
use longhaul_data::Tokenizer;
use longhaul_proto::control::message::Profile;

use crate::cli::JoinArgs;
use longhaul_engine::Batch;
use longhaul_engine::{Engine, claim_device};

/// Minimum duration and number of timed steps.
const ENOUGH: Duration = Duration::from_millis(700);
const STEPS_MIN: u32 = 2;

/// Trains a one-layer version of the model on a synthetic micro-batch of text or images for about a second. Blocks the calling thread.
///
/// # Errors
/// The device or tokenizer is missing, or libtorch fails, mostly out of memory.
#[allow(clippy::disallowed_methods, reason = "measures speed")]
pub(super) fn measure(args: &JoinArgs, config: &RunConfig) -> Result<Profile> {
    let (spec, batch) = match &config.data.image {
        Some(image) => {
            let spec = ModelSpec::of(config, image.classes)?;
            (spec, made_up_images(config, image))
        }
        None => {
            let vocabulary = match config.vocabulary() {
                Some(vocabulary) => vocabulary,
                None => Tokenizer::load(&config.data.tokenizer)?.vocabulary(),
            };
            let one_layer = ModelConfig { layers: 1, ..config.model.clone() };
            (ModelSpec::resolve(&one_layer, vocabulary)?, made_up(config, vocabulary))
        }
    };
    let device = claim_device(&args.device)?;
    let threads = args.threads.and_then(|threads| NonZeroU32::new(u32::from(threads)));
    let mut engine = Engine::new(&spec, &config.train, u64::MAX, config.run.seed, device, threads)?;
    // A GPU adds some gradients in any order.
    let is_repeatable = config.is_redundancy_open() && !device.is_cuda();
    let gradient_hash = if is_repeatable { gradient_hash(&mut engine, &batch)? } else { 0 };
    // The first step also allocates memory and selects kernels.
    engine.train_step(0, &batch)?;
    let (began, mut steps) = (Instant::now(), 0);
    while steps < STEPS_MIN || began.elapsed() < ENOUGH {
        // Reading the loss synchronises with a GPU, too.
        engine.train_step(u64::from(steps) + 1, &batch)?;
        steps += 1;
    }
    let flops = flops_per_token(&spec, config) * batch.tokens() as f64 * f64::from(steps);
    let flops_per_s = flops / began.elapsed().as_secs_f64();
    Ok(Profile { flops_per_s, vocabulary: spec.vocabulary, gradient_hash })
}

/// Returns a hash of the batch's gradient at the initial weights; never 0.
fn gradient_hash(engine: &mut Engine, batch: &Batch) -> Result<u64> {
    let mut gradient = Vec::new();
    engine.gradient(batch, &mut gradient)?;
    let [a, b, c, d, e, f, g, h, ..] = longhaul_member::hash_of(&gradient);
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1))
}

/// A micro-batch of arbitrary tokens.
fn made_up(config: &RunConfig, vocabulary: u32) -> Batch {
    let length = config.data.sequence_length;
    let mut batch = Batch::new(length as usize);
    for sequence in 0..config.train.micro_batch {
        batch.push((0..=length).map(|at| (at.wrapping_mul(31).wrapping_add(sequence)) % vocabulary.max(1)));
    }
    batch
}

/// A micro-batch of arbitrary images.
fn made_up_images(config: &RunConfig, image: &ImageConfig) -> Batch {
    let values = image.values() as usize;
    let mut batch = Batch::of_images(values);
    for at in 0..config.train.micro_batch {
        let class = (at % image.classes) as u16;
        let pixels = (0..values).map(|pixel| (pixel * 31 + at as usize * 17) as u8);
        batch.push_image(&pixels.chain(class.to_le_bytes()).collect::<Vec<u8>>());
    }
    batch
}

fn flops_per_token(spec: &ModelSpec, config: &RunConfig) -> f64 {
    // A device's FLOP/s are the same for a first forward pass and its recomputation.
    let of = |block: &BlockCost| {
        let again = if config.train.recompute { block.forward_flops_per_token } else { 0 };
        block.forward_flops_per_token + block.backward_flops_per_token + again
    };
    let blocks = spec.blocks_in(config);
    blocks.iter().map(of).sum::<u64>() as f64
}
