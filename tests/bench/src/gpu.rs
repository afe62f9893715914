//! A GPT-2 of 124 million parameters trained on one GPU, compared with the same model in plain PyTorch.
//!
//! Built with libtorch for GPUs (`cargo xtask setup --cuda`), or with that of the Python in
//! `LD_LIBRARY_PATH`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::config::{ModelConfig, ModelKind, Precision, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_engine::{Batch, Engine, choose_device};
use longhaul_nccl::gpu_memory_bytes;
use tch::{Cuda, Device};

use crate::kit::args::{Python, Quick};
use crate::kit::clock::seconds_of;
use crate::kit::figures::{Line, figure};
use crate::kit::python;
use crate::kit::recorder::Recorder;

const LENGTH: u32 = 1024;
const MICRO_BATCH: u32 = 16;
/// A multiple of 64 above GPT-2's own, as usual on GPUs.
const VOCABULARY: u32 = 50_304;
/// Steps before the measured ones: the first choose kernels and allocate.
const WARM_UP: u64 = 5;

/// A benchmark case.
struct Case {
    name: &'static str,
    precision: Precision,
    recompute: bool,
    /// Micro-batches per step.
    micros: u32,
}

const CASES: [Case; 4] = [
    Case { name: "bf16", precision: Precision::Bf16, recompute: false, micros: 1 },
    Case { name: "bf16, 4 micro-batches", precision: Precision::Bf16, recompute: false, micros: 4 },
    Case { name: "bf16, computed again", precision: Precision::Bf16, recompute: true, micros: 1 },
    Case { name: "f32", precision: Precision::F32, recompute: false, micros: 1 },
];

/// Training on one GPU, which is required
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    python: Python,
    /// GPU
    #[arg(long, value_name = "NAME", default_value = "auto")]
    device: String,
    /// Only the case of this name
    #[arg(long, value_name = "CASE")]
    only: Option<String>,
}

/// Measures the cases, and plain PyTorch.
pub fn run(args: &Args) -> Result<()> {
    let Device::Cuda(gpu) = choose_device(&args.device)? else {
        bail!("there is no GPU for this benchmark: `worker doctor` says why")
    };
    let steps = args.quick.choose(5, 30);
    if let Some(only) = &args.only {
        let case = CASES.iter().find(|case| case.name == only).with_context(|| format!("case {only:?}"))?;
        return measure(case, gpu, steps);
    }
    // Each in its own process: libtorch's allocator never returns memory.
    for case in &CASES {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).args(["--only", case.name]);
        let status = command.status().context("start a case")?;
        ensure!(status.success(), "{}: {status}", case.name);
    }
    args.python.python.as_deref().map_or(Ok(()), |python| plain(python, steps))
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

fn measure(case: &Case, gpu: usize, all_steps: u64) -> Result<()> {
    let spec = spec()?;
    let (precision, recompute) = (case.precision, case.recompute);
    let train = TrainConfig { micro_batch: MICRO_BATCH, precision, recompute, ..TrainConfig::default() };
    let free = gpu_memory_bytes(gpu)?;
    let mut engine = Engine::new(&spec, &train, WARM_UP + all_steps, 1, Device::Cuda(gpu), None)?;
    let mut batch = Batch::new(LENGTH as usize);
    for sequence in 0..MICRO_BATCH * case.micros {
        batch.push((0..=LENGTH).map(|i| (i * i + 31 * sequence) % VOCABULARY));
    }
    (0..WARM_UP).try_for_each(|step| engine.train_step(step, &batch).map(drop))?;
    let step_s = per_step(gpu, all_steps, |step| {
        engine.train_step(WARM_UP + step, &batch)?;
        Ok(())
    })?;
    let used = free.saturating_sub(gpu_memory_bytes(gpu)?);
    // The path of a strategy that exchanges gradients.
    let mut gradient = Vec::new();
    let steps = (all_steps / 5).max(2);
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
    let figures = [
        figure("tokens_per_s", tokens, "tokens/s"),
        figure("model_tflops", tokens * flops / 1e12, "TFLOP/s"),
        figure("step_s", step_s, "s"),
        figure("step_through_host_s", through_host_s, "s"),
        figure("state_to_host_s", state_s, "s"),
        figure("memory_bytes", used as f64, "B"),
    ];
    Recorder::new("gpu").print_all(case.name, figures);
    Ok(())
}

/// Returns the seconds of each of this many steps, until the GPU has finished the last one.
fn per_step(gpu: usize, steps: u64, mut step: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    Cuda::synchronize(gpu as i64);
    let all = seconds_of(|| {
        (0..steps).try_for_each(&mut step)?;
        Cuda::synchronize(gpu as i64);
        Ok(())
    })?;
    Ok(all / steps as f64)
}

/// Runs the same model, batches and rule in plain PyTorch, and forwards its lines.
fn plain(python: &Path, steps: u64) -> Result<()> {
    for line in python::run(python, "gpu.py", [WARM_UP, steps].map(|steps| steps.to_string()))?.lines() {
        let line: Line = serde_json::from_str(line).with_context(|| format!("a figure in {line:?}"))?;
        line.print();
    }
    Ok(())
}
