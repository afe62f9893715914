//! Share of a device's step time spent waiting for data.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use longhaul_common::config::{ModelConfig, ModelKind, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_data::{Dataset, ReadRequest, STEPS_AHEAD};
use longhaul_engine::{Engine, choose_device, read_ahead};

use super::{SEED, open, print, write_tokens};
use crate::kit::clock::now;

const SEQUENCES: u64 = 8;
const LENGTH: u32 = 128;
const TOKENS: usize = 4 << 20;
/// Steps before the measured ones: the first allocate.
const WARM_UP: u64 = 2;

/// Trains with and without read-ahead.
pub fn bench(folder: &Path, quick: bool) -> Result<()> {
    write_tokens(&folder.join("wait.bin"), TOKENS)?;
    let steps = if quick { 3 } else { 100 };
    for (name, is_ahead) in [("read ahead", true), ("read when wanted", false)] {
        let data = open(folder, "wait.bin", LENGTH)?;
        let (waited, all) = train(&data, is_ahead, steps)?;
        let case = format!("gpt 2.7M b{SEQUENCES} t{LENGTH} 1 thread, {name}");
        print(&case, "data_wait_share", waited.as_secs_f64() / all.as_secs_f64(), "");
        print(&case, "data_wait_ms", 1e3 * waited.as_secs_f64() / steps as f64, "ms/step");
        print(&case, "step_s", all.as_secs_f64() / steps as f64, "s");
    }
    Ok(())
}

/// Returns the waiting time and the total.
fn train(data: &Arc<Dataset>, is_ahead: bool, steps: u64) -> Result<(Duration, Duration)> {
    let config = ModelConfig {
        layers: 4,
        width: 224,
        heads: 4,
        context: LENGTH,
        tied_embeddings: Some(false),
        ..ModelConfig::of(ModelKind::Gpt2)
    };
    let spec = ModelSpec::resolve(&config, 256)?;
    let train = TrainConfig { micro_batch: SEQUENCES as u32, ..TrainConfig::default() };
    let device = choose_device("cpu")?;
    let mut engine = Engine::new(&spec, &train, steps + WARM_UP, SEED, device, NonZeroU32::new(1))?;
    let ahead = read_ahead(Arc::clone(data), SEED, device)?;
    let (mut waited, mut began) = (Duration::ZERO, now());
    for step in 0..WARM_UP + steps {
        if step == WARM_UP {
            (waited, began) = (Duration::ZERO, now());
        }
        let wanted = now();
        let batch = match is_ahead {
            true => ahead.take((step..step + STEPS_AHEAD as u64).map(wanted_at))?,
            false => data.batch(wanted_at(step).positions, SEED)?.into(),
        };
        waited += wanted.elapsed();
        engine.train_step(step, &batch)?;
    }
    Ok((waited, began.elapsed()))
}

fn wanted_at(step: u64) -> ReadRequest {
    ReadRequest {
        positions: (step * SEQUENCES..(step + 1) * SEQUENCES).collect(),
        micro_batch: SEQUENCES as usize,
    }
}
