//! Measures training across an emulated link, compared with the same training without one and with PyTorch.
//!
//! All processes share this machine: two workers with a thread each, the coordinator and the emulator. Each
//! case is therefore compared with two workers that train in parallel without exchange, in the same run. One
//! JSON line per figure goes to stdout, progress to stderr.

mod ours;

use std::time::Duration;

use anyhow::Result;
use longhaul_emulator::LinkConfig;
use longhaul_tests::interrupt;

use crate::kit::args::{Only, Quick};
use crate::kit::figures::{Figure, figure};
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::runs::{gpt, pytorch};

/// Seconds per step and share of local speed for a GPT of 10.9 million parameters on two sites
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    /// Each direction of the link
    #[arg(long, default_value = "rate_mbit=100,delay_ms=25")]
    link: LinkConfig,
    #[command(flatten)]
    only: Only,
}

/// Measures all cases; a quick run omits dense and PyTorch over the link, and takes about two minutes.
pub fn run(args: &Args) -> Result<()> {
    interrupt::watch()?;
    let (wanted, quick) = (|case: &str| args.only.wants(case), args.quick.quick);
    let steps = args.quick.choose(24, 60);
    let python = if wanted("pytorch") { find_python() } else { None };
    let (local_s, torch_s) = local(args.quick, steps, python.as_ref())?;
    if wanted("sparse-local") {
        let (step_s, figures) = ours::across(&args.link, ours::SPARSE_LOCAL, steps)?;
        report_against("ours, sparse-local", step_s, local_s, &figures);
    }
    if wanted("dense") && !quick {
        let (step_s, figures) = ours::across(&args.link, ours::DENSE, 12)?;
        report_against("ours, dense f32", step_s, local_s, &figures);
    }
    match python.zip(torch_s) {
        Some((python, torch_s)) if !quick => pytorch_across(&args.link, &python, torch_s),
        _ => Ok(()),
    }
}

fn find_python() -> Option<pytorch::Python> {
    let python = pytorch::find();
    if python.is_none() {
        let words = "python finds no torch (LONGHAUL_PYTHON names another interpreter): the PyTorch rows are left out";
        progress(words);
    }
    python
}

/// Returns the seconds per step of two workers without exchange: ours, and PyTorch's. They alternate, as the
/// machine's speed drifts.
fn local(quick: Quick, steps: u64, python: Option<&pytorch::Python>) -> Result<(f64, Option<f64>)> {
    let (turns, torch_steps) = quick.choose((1, 8), (3, 20));
    let (mut ours_s, mut torch_s) = (0.0, 0.0);
    for turn in 1..=turns {
        progress(format!("local, {turn} of {turns} ..."));
        ours_s += gpt::local(steps)? / f64::from(turns);
        if let Some(python) = python {
            torch_s += python.local(&[], torch_steps)? / f64::from(turns);
        }
    }
    report("ours, local", [figure("step_s", ours_s, "s")]);
    if python.is_none() {
        return Ok((ours_s, None));
    }
    report("PyTorch, local", [figure("step_s", torch_s, "s")]);
    report("ours, local", [figure("step_s_over_pytorch", ours_s / torch_s, "ratio")]);
    Ok((ours_s, Some(torch_s)))
}

fn pytorch_across(link: &LinkConfig, python: &pytorch::Python, local_s: f64) -> Result<()> {
    let steps = pytorch::WARM_UP_STEPS + 8;
    for (case, hook) in
        [("PyTorch, DDP f32", "none"), ("PyTorch, DDP fp16", "fp16"), ("PyTorch, DDP PowerSGD", "powersgd")]
    {
        progress(format!("{case} ..."));
        let links = pytorch::links(link)?;
        let mode = ["ddp", "--hook", hook];
        match python.across(&links, &[], &mode, Duration::MAX, |times| times.len() >= steps)? {
            Some(times) => {
                let step_s = pytorch::mean_after_warm_up(&times)?;
                report_against(case, step_s, local_s, &[]);
            }
            None => {
                progress("no root or no TUN device: the PyTorch rows over the link are left out");
                return Ok(());
            }
        }
    }
    Ok(())
}

fn report_against(case: &str, step_s: f64, local_s: f64, more: &[Figure]) {
    let own = [figure("step_s", step_s, "s"), figure("share_of_local_speed", local_s / step_s, "ratio")];
    report(case, own.iter().chain(more).copied());
}

fn report(case: &str, figures: impl IntoIterator<Item = Figure>) {
    Recorder::new("wan").rounded_to(3).print_all(case, figures);
}
