//! How fast this machine computes with a run's model.

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

/// Steps are timed for as long as this, and at least so many.
const ENOUGH: Duration = Duration::from_millis(700);
const STEPS_MIN: u32 = 2;

/// Trains the model with one of its layers on a micro-batch of made-up text, or a classifier on one of made-up images, for about a second. Not for a thread that others wait for.
///
/// # Errors
/// When there is no such device or tokenizer; where libtorch fails: out of memory, mostly.
#[allow(clippy::disallowed_methods, reason = "measures speed")]
pub(super) fn measure(args: &JoinArgs, config: &RunConfig) -> Result<Profile> {
    let (spec, batch) = match &config.data.image {
        Some(image) => {
            let spec = ModelSpec::of(config, image.classes)?;
            (spec, made_up_images(config, image))
        }
        None => {
            let vocabulary = Tokenizer::load(&config.data.tokenizer)?.vocabulary();
            let one_layer = ModelConfig { layers: 1, ..config.model.clone() };
            (ModelSpec::resolve(&one_layer, vocabulary)?, made_up(config, vocabulary))
        }
    };
    let device = claim_device(&args.device)?;
    let threads = args.threads.and_then(|threads| NonZeroU32::new(u32::from(threads)));
    let mut engine = Engine::new(&spec, &config.train, u64::MAX, config.run.seed, device, threads)?;
    // The first step also takes memory and chooses kernels.
    engine.train_step(0, &batch)?;
    let (began, mut steps) = (Instant::now(), 0);
    while steps < STEPS_MIN || began.elapsed() < ENOUGH {
        // On a GPU too: it reads the loss, and so waits for it.
        engine.train_step(u64::from(steps) + 1, &batch)?;
        steps += 1;
    }
    let flops = flops_per_token(&spec, config) * batch.tokens() as f64 * f64::from(steps);
    Ok(Profile { flops_per_s: flops / began.elapsed().as_secs_f64(), vocabulary: spec.vocabulary })
}

/// A micro-batch of tokens that are anything.
fn made_up(config: &RunConfig, vocabulary: u32) -> Batch {
    let length = config.data.sequence_length;
    let mut batch = Batch::new(length as usize);
    for sequence in 0..config.train.micro_batch {
        batch.push((0..=length).map(|at| (at.wrapping_mul(31).wrapping_add(sequence)) % vocabulary.max(1)));
    }
    batch
}

/// A micro-batch of images that are anything.
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
    // A device does as many in a second, whether they are of a first forward pass or of one that is made again.
    let of = |block: &BlockCost| {
        let again = if config.train.recompute { block.forward_flops_per_token } else { 0 };
        block.forward_flops_per_token + block.backward_flops_per_token + again
    };
    let blocks = spec.blocks_in(config);
    blocks.iter().map(of).sum::<u64>() as f64
}
