//! A GPT-2 of 124 million parameters trained on one GPU, beside the same model in plain PyTorch, as JSON lines:
//! `cargo run --release -p longhaul-bench --features torch --bin bench-gpu [-- --quick] [--device cuda:0] [--python PROGRAM] [--only CASE]`.
//!
//! It is built against libtorch for GPUs (`cargo xtask setup --cuda`), or finds that of the Python in `LD_LIBRARY_PATH`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use longhaul_bench::figures;
use longhaul_common::config::{ModelConfig, ModelKind, Precision, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_engine::Batch;
use longhaul_engine::{Engine, choose_device};
use longhaul_nccl::gpu_memory_bytes;
use serde_json::Value;
use tch::{Cuda, Device};

const LENGTH: u32 = 1024;
const MICRO_BATCH: u32 = 16;
/// A multiple of 64 above GPT-2's own, as those who train on GPUs have it.
const VOCABULARY: u32 = 50_304;
/// Steps before the measured ones: the first choose kernels and allocate.
const WARM_UP: u64 = 5;

/// What is measured.
struct Case {
    name: &'static str,
    precision: Precision,
    recompute: bool,
    /// Micro-batches in a step.
    micros: u32,
}

const CASES: [Case; 4] = [
    Case { name: "bf16", precision: Precision::Bf16, recompute: false, micros: 1 },
    Case { name: "bf16, 4 micro-batches", precision: Precision::Bf16, recompute: false, micros: 4 },
    Case { name: "bf16, computed again", precision: Precision::Bf16, recompute: true, micros: 1 },
    Case { name: "f32", precision: Precision::F32, recompute: false, micros: 1 },
];

struct Options {
    steps: u64,
    device: Device,
    python: Option<PathBuf>,
    /// The only case that is wanted.
    only: Option<String>,
}

fn main() -> Result<()> {
    let options = Options::read()?;
    if let Some(only) = &options.only {
        let case = CASES.iter().find(|case| case.name == only).with_context(|| format!("case {only:?}"))?;
        return measure(case, &options);
    }
    // Each in a process of its own: what libtorch's allocator has once taken it keeps.
    for case in &CASES {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).args(["--only", case.name]);
        let status = command.status().context("start a case")?;
        ensure!(status.success(), "{}: {status}", case.name);
    }
    options.python.as_deref().map_or(Ok(()), |python| plain(python, options.steps))
}

impl Options {
    fn read() -> Result<Self> {
        let mut options = Self { steps: 30, device: choose_device("auto")?, python: None, only: None };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match &*argument {
                "--quick" => options.steps = 5,
                "--device" => options.device = choose_device(&arguments.next().context("--device NAME")?)?,
                "--python" => options.python = Some(arguments.next().context("--python PROGRAM")?.into()),
                "--only" => options.only = Some(arguments.next().context("--only CASE")?),
                _ => bail!("{argument} is none of --quick, --device, --python and --only"),
            }
        }
        ensure!(options.device.is_cuda(), "there is no GPU for this benchmark: `worker doctor` says why");
        Ok(options)
    }
}

fn spec() -> Result<ModelSpec> {
    let config = ModelConfig {
        layers: 12,
        width: 768,
        heads: 12,
        context: LENGTH,
        tied_embeddings: Some(true),
        ..ModelConfig::of(ModelKind::Gpt2)
    };
    Ok(ModelSpec::resolve(&config, VOCABULARY)?)
}

fn measure(case: &Case, options: &Options) -> Result<()> {
    let Device::Cuda(gpu) = options.device else { bail!("no GPU") };
    let spec = spec()?;
    let (precision, recompute) = (case.precision, case.recompute);
    let train = TrainConfig { micro_batch: MICRO_BATCH, precision, recompute, ..TrainConfig::default() };
    let free = gpu_memory_bytes(gpu)?;
    let mut engine = Engine::new(&spec, &train, WARM_UP + options.steps, 1, options.device, None)?;
    let mut batch = Batch::new(LENGTH as usize);
    for sequence in 0..MICRO_BATCH * case.micros {
        batch.push((0..=LENGTH).map(|i| (i * i + 31 * sequence) % VOCABULARY));
    }
    (0..WARM_UP).try_for_each(|step| engine.train_step(step, &batch).map(drop))?;
    let step_s = per_step(gpu, options.steps, |step| {
        engine.train_step(WARM_UP + step, &batch)?;
        Ok(())
    })?;
    let used = free.saturating_sub(gpu_memory_bytes(gpu)?);
    // The way of a strategy that exchanges gradients.
    let mut gradient = Vec::new();
    let steps = (options.steps / 5).max(2);
    let through_host_s = per_step(gpu, steps, |step| {
        engine.gradient(&batch, &mut gradient)?;
        Ok(engine.apply_gradient(step, &gradient)?)
    })?;
    let mut parameters = Vec::new();
    let state_s = per_step(gpu, 3, |_| {
        engine.parameters_to_host(&mut parameters)?;
        engine.moments_to_host()?;
        Ok(())
    })?;
    let tokens = f64::from(LENGTH * MICRO_BATCH * case.micros) / step_s;
    let flops = spec.train_flops_per_token(LENGTH) as f64;
    print(case.name, "tokens_per_s", tokens, "tokens/s");
    print(case.name, "model_tflops", tokens * flops / 1e12, "TFLOP/s");
    print(case.name, "step_s", step_s, "s");
    print(case.name, "step_through_host_s", through_host_s, "s");
    print(case.name, "state_to_host_s", state_s, "s");
    print(case.name, "memory_bytes", used as f64, "B");
    Ok(())
}

/// Seconds of each of so many steps, until the GPU has ended the last one.
fn per_step(gpu: usize, steps: u64, mut step: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    Cuda::synchronize(gpu as i64);
    let began = Instant::now();
    (0..steps).try_for_each(&mut step)?;
    Cuda::synchronize(gpu as i64);
    Ok(began.elapsed().as_secs_f64() / steps as f64)
}

/// The same model, batches and rule in plain PyTorch, whose lines are passed on.
fn plain(python: &Path, steps: u64) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/gpu/plain.py");
    let script = if script.is_file() { script } else { "tests/bench/src/bin/gpu/plain.py".into() };
    let output = Command::new(python)
        .arg(&script)
        .args([WARM_UP, steps].map(|steps| steps.to_string()))
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("start {}", python.display()))?;
    ensure!(output.status.success(), "{} failed: {}", script.display(), output.status);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let figure: Value = serde_json::from_str(line).with_context(|| format!("a figure in {line:?}"))?;
        println!("{figure}");
    }
    Ok(())
}

fn print(case: &str, metric: &str, value: f64, unit: &str) {
    figures::print("gpu", case, metric, value, unit);
}
