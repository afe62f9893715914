//! A wide perceptron for images of 224 × 224, which are averaged over 4 × 4 pixels and all channels, in two classes; batches of 8 images, ten epochs: with all that spares work,
//! against all gradients of all images, and against plain PyTorch, which averages the images of each batch anew.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use longhaul_common::config::{
    ImageConfig, ModelConfig, ModelKind, SelectionMode, SparseBackwardConfig, SparseMode, TrainConfig,
};
use longhaul_common::model::ModelSpec;

use crate::course::{Course, Outcome, selective};
use crate::images::Images;
use crate::print;

const BENCH: &str = "selection/large images";
const BATCH: u64 = 8;
const EPOCHS: u64 = 10;
const SIDE: usize = 224;
/// Pixels along a side that are averaged, and channels.
const AVERAGED: usize = 4;
const CHANNELS: usize = 3;
const HIDDEN: [u32; 5] = [1024, 2048, 1024, 512, 256];
/// Images that are held out.
const HELD_OUT: usize = 200;

pub fn bench(python: Option<&Path>, quick: bool) -> Result<()> {
    let count = if quick { 32 } else { 2000 };
    let began = Instant::now();
    let (images, test) = (made_up(0, count), made_up(count, if quick { 16 } else { HELD_OUT }));
    let prepared = began.elapsed().as_secs_f64() * count as f64 / (count as f64 + test.len() as f64);
    let model = ModelConfig { hidden: Some(HIDDEN.to_vec()), ..ModelConfig::of(ModelKind::Mlp) };
    let epochs = if quick { 2 } else { EPOCHS };
    let steps = images.len() * epochs / BATCH;
    let course = |steps| -> Result<Course<'_>> {
        let spec = ModelSpec::of_images(&model, &images.shape)?;
        Ok(Course { spec, images: &images, held_out: test.all(), batch: BATCH, steps, evaluate_every: steps })
    };
    let dense =
        TrainConfig { micro_batch: 32, warmup_steps: 0, learning_rate: 1e-4, ..TrainConfig::default() };
    let layers = vec!["*".to_owned()];
    let columns = SparseBackwardConfig { keep: 0.1, mode: SparseMode::Columns, layers };
    let sparse = TrainConfig { sparse_backward: Some(columns), ..dense.clone() };
    let chosen = selective(2.0, SelectionMode::Stale);
    // Behind the first epoch, a step looks at three times as many images.
    let fewer = images.len() / BATCH + (steps - images.len() / BATCH) / 3;
    let plain = course(steps)?.run(&dense, None)?;
    let all = plain.last()?.0;
    report("all gradients of all images", &plain, all, prepared)?;
    report("a tenth of the columns", &course(steps)?.run(&sparse, None)?, all, prepared)?;
    report("images selected, stale", &course(fewer)?.run(&dense, Some(&chosen))?, all, prepared)?;
    report("both", &course(fewer)?.run(&sparse, Some(&chosen))?, all, prepared)?;
    match python {
        Some(python) => pytorch(python, count, epochs),
        None => {
            eprintln!("no --python PROGRAM is given that has PyTorch: it is not measured");
            Ok(())
        }
    }
}

fn report(case: &str, outcome: &Outcome, all: f64, prepared: f64) -> Result<()> {
    let (seconds, last) = outcome.last()?;
    print(
        BENCH,
        case,
        &[
            ("seconds", Some(seconds), "s"),
            ("seconds_of_averaging", Some(prepared), "s"),
            ("speedup", Some(all / seconds), "ratio"),
            ("accuracy", last.accuracy.map(f64::from), "ratio"),
        ],
    );
    Ok(())
}

/// Noise, brighter on the left or on the right: 224 × 224 pixels of three channels, averaged as they are prepared.
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

/// Prints what the script beside this file measures.
fn pytorch(python: &Path, images: usize, epochs: u64) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bench_images/plain.py");
    let mut command = Command::new(python);
    command.arg(script).args([images.to_string(), epochs.to_string()]);
    let output = command.output().with_context(|| format!("start {}", python.display()))?;
    ensure!(output.status.success(), "PyTorch failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let seconds: f64 = text.trim().parse().with_context(|| format!("read the seconds {text:?}"))?;
    print(BENCH, "plain PyTorch", &[("seconds", Some(seconds), "s")]);
    Ok(())
}
