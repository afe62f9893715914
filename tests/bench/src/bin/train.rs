//! Seconds of a training step, as JSON lines: `cargo run --release -p longhaul-bench --features torch --bin bench-train [-- --quick]`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark reads the clock and prints")]

use std::num::NonZeroU32;
use std::time::Instant;

use longhaul_bench::figures::{is_given, median_and_least, more, print_with};
use longhaul_common::config::{ModelConfig, ModelKind, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_engine::Batch;
use longhaul_engine::{Engine, choose_device, keep_freed_memory};
use serde_json::json;

const SEQUENCES: u32 = 8;
const LENGTH: usize = 128;
/// Steps before the measured ones: the first allocate.
const WARM_UP: u64 = 2;

fn main() -> anyhow::Result<()> {
    keep_freed_memory();
    let quick = is_given("--quick");
    let steps = if quick { 3 } else { 30 };
    let config = ModelConfig {
        kind: ModelKind::Gpt2,
        layers: 6,
        width: 384,
        heads: 6,
        kv_heads: None,
        feed_forward_width: None,
        context: LENGTH as u32,
        vocabulary: None,
        tied_embeddings: Some(false),
        hidden: None,
        channels: None,
    };
    let spec = ModelSpec::resolve(&config, 256)?;
    let train = TrainConfig { micro_batch: SEQUENCES, ..TrainConfig::default() };
    let mut engine = Engine::new(&spec, &train, steps, 1, choose_device("cpu")?, NonZeroU32::new(1))?;
    let mut batch = Batch::new(LENGTH);
    for sequence in 0..SEQUENCES {
        batch.push((0..=LENGTH as u32).map(|i| (i * i + 31 * sequence) % 256));
    }

    let mut gradient = Vec::new();
    let (mut whole, mut halves) = (Vec::new(), Vec::new());
    for step in 0..WARM_UP + steps {
        let start = Instant::now();
        engine.train_step(step, &batch)?;
        let stepped = start.elapsed().as_secs_f64();
        // The dense strategy's way, through the host.
        let start = Instant::now();
        engine.gradient(&batch, &mut gradient)?;
        engine.apply_gradient(step, &gradient)?;
        if step >= WARM_UP {
            whole.push(stepped);
            halves.push(start.elapsed().as_secs_f64());
        }
    }
    for (metric, seconds) in [("step_s", whole), ("step_through_host_s", halves)] {
        let (median, least) = median_and_least(seconds);
        let more = more([("least", json!(least)), ("steps", json!(steps))]);
        print_with("train", "gpt 10.9M b8 t128 1 thread", metric, (median, "s"), more);
    }
    Ok(())
}
