//! A wide perceptron for images of 224 × 224, averaged over 4 × 4 pixels and all channels, in two classes;
//! batches of 8 images, ten epochs. Compares all savings with all gradients of all images, and with plain
//! PyTorch, which averages the images of each batch every time.

use std::path::Path;

use anyhow::{Context, Result};
use longhaul_common::config::{
    ImageConfig, ModelConfig, ModelKind, SelectionMode, SparseBackwardConfig, SparseMode, TrainConfig,
};
use longhaul_common::model::ModelSpec;
use serde::Deserialize;

use super::course::{Course, Outcome, selective};
use super::samples::Images;
use crate::kit::clock::now;
use crate::kit::recorder::Recorder;
use crate::kit::{progress, python};

const BENCH: &str = "selection/large images";
const BATCH: u64 = 8;
const EPOCHS: u64 = 10;
const SIDE: usize = 224;
/// Pixels averaged along a side, and channels.
const AVERAGED: usize = 4;
const CHANNELS: usize = 3;
const HIDDEN: [u32; 5] = [1024, 2048, 1024, 512, 256];
/// Held-out images.
const HELD_OUT: usize = 200;

pub fn bench(python: Option<&Path>, quick: bool) -> Result<()> {
    let count = if quick { 32 } else { 2000 };
    let began = now();
    let (images, test) = (made_up(0, count), made_up(count, if quick { 16 } else { HELD_OUT }));
    let prepared = began.elapsed().as_secs_f64() * count as f64 / (count as f64 + test.len() as f64);
    let model = ModelConfig { hidden: Some(HIDDEN.to_vec()), ..ModelConfig::of(ModelKind::Mlp) };
    let epochs = if quick { 2 } else { EPOCHS };
    let steps = images.len() * epochs / BATCH;
    let course = |steps| -> Result<Course<'_>> {
        let spec = ModelSpec::of_images(&model, &images.shape)?;
        Ok(Course { spec, images: &images, held_out: test.all(), batch: BATCH, steps, evaluations: 1 })
    };
    let dense =
        TrainConfig { micro_batch: 32, warmup_steps: 0, learning_rate: 1e-4, ..TrainConfig::default() };
    let layers = vec!["*".to_owned()];
    let columns = SparseBackwardConfig { keep: 0.1, mode: SparseMode::Columns, layers };
    let sparse = TrainConfig { sparse_backward: Some(columns), ..dense.clone() };
    let chosen = selective(2.0, SelectionMode::Stale);
    // After the first epoch, a step examines three times as many images.
    let fewer = images.len() / BATCH + (steps - images.len() / BATCH) / 3;
    let pytorch = python.map(|python| pytorch(python, count, test.len(), epochs)).transpose()?;
    if pytorch.is_none() {
        progress("no --python PROGRAM is given that has PyTorch: it is not measured");
    }
    let plain = course(steps)?.run(&dense, None)?;
    let against = Against { all: plain.last()?.0, pytorch, prepared };
    against.report("all gradients of all images", &plain)?;
    against.report("a tenth of the columns", &course(steps)?.run(&sparse, None)?)?;
    against.report("images selected, stale", &course(fewer)?.run(&dense, Some(&chosen))?)?;
    against.report("both", &course(fewer)?.run(&sparse, Some(&chosen))?)
}

/// Reference times in seconds.
struct Against {
    /// All gradients of all images.
    all: f64,
    /// Plain PyTorch.
    pytorch: Option<f64>,
    /// Averaging the images once, which PyTorch does in its steps.
    prepared: f64,
}

impl Against {
    fn report(&self, case: &str, outcome: &Outcome) -> Result<()> {
        let (seconds, last) = outcome.last()?;
        let over_pytorch = self.pytorch.map(|pytorch| pytorch / (seconds + self.prepared));
        Recorder::new(BENCH).print_known(
            case,
            &[
                ("seconds", Some(seconds), "s"),
                ("seconds_of_averaging", Some(self.prepared), "s"),
                ("speedup", Some(self.all / seconds), "ratio"),
                ("speedup_over_pytorch", over_pytorch, "ratio"),
                ("accuracy", last.accuracy.map(f64::from), "ratio"),
            ],
        );
        Ok(())
    }
}

/// Noise, brighter on the left or on the right: 224 × 224 pixels of three channels, averaged during
/// preparation.
fn made_up(first: usize, count: usize) -> Images {
    let side = SIDE / AVERAGED;
    let shape = ImageConfig {
        channels: 1,
        height: side as u32,
        width: side as u32,
        classes: 2,
        shift: 0,
        flip: false,
    };
    Images::made_up(shape, count, |at, into| {
        let (number, class) = (first + at, (first + at) % 2);
        let mut sums = vec![0_u32; side * side];
        for place in 0..SIDE * SIDE * CHANNELS {
            let (row, column) = (place / SIDE % SIDE, place % SIDE);
            let noise = ((place.wrapping_mul(2_654_435_761) ^ number.wrapping_mul(40_503)) >> 7) & 0x7f;
            let bright = if (column < SIDE / 2) == (class == 0) { 16 } else { 0 };
            sums[row / AVERAGED * side + column / AVERAGED] += (noise + bright) as u32;
        }
        let averaged = (AVERAGED * AVERAGED * CHANNELS) as u32;
        into.extend(sums.into_iter().map(|sum| (sum / averaged) as u8));
        class as u16
    })
}

/// Output of the script.
#[derive(Deserialize)]
struct Plain {
    seconds: f64,
    accuracy: f64,
}

/// Prints the script's measurements; returns its seconds.
fn pytorch(python: &Path, images: usize, held_out: u64, epochs: u64) -> Result<f64> {
    let sizes = [images.to_string(), held_out.to_string(), epochs.to_string()];
    let Plain { seconds, accuracy } = serde_json::from_str(&python::run(python, "images.py", sizes)?)
        .with_context(|| format!("read what {} measured", python.display()))?;
    let figures = [("seconds", Some(seconds), "s"), ("accuracy", Some(accuracy), "ratio")];
    Recorder::new(BENCH).print_known("plain PyTorch", &figures);
    Ok(seconds)
}
