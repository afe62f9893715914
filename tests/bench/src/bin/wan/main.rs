//! Measures training across an emulated link, against the same training without one and against PyTorch.
//!
//! Everything shares this machine: two workers with a thread each, the coordinator and the emulator. So each case is compared with two
//! workers that train side by side and do not talk, in the same run. One JSON line per figure goes to stdout, progress to stderr.

mod ours;

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use longhaul_bench::figures::{print, rounded};
use longhaul_bench::{gpt, pytorch};
use longhaul_emulator::LinkConfig;
use longhaul_tests::interrupt;

/// Seconds a step and share of local speed for a GPT of 10.9 million parameters on two sites.
#[derive(Parser)]
struct Args {
    /// Fewer steps, without dense and PyTorch over the link: a first impression in about two minutes.
    #[arg(long)]
    quick: bool,
    /// Each direction of the link.
    #[arg(long, default_value = "rate_mbit=100,delay_ms=25")]
    link: LinkConfig,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// A measured figure.
struct Figure {
    metric: &'static str,
    value: f64,
    unit: &'static str,
}

fn main() -> Result<()> {
    let args = Args::parse();
    interrupt::watch()?;
    let wanted = |case: &str| args.only.as_ref().is_none_or(|only| case.contains(only.as_str()));
    let steps = if args.quick { 24 } else { 60 };
    let python = if wanted("pytorch") { find_python() } else { None };
    let (local_s, torch_s) = local(&args, steps, python.as_ref())?;
    if wanted("sparse-local") {
        let (step_s, figures) = ours::across(&args.link, ours::SPARSE_LOCAL, steps)?;
        report_against("ours, sparse-local", step_s, local_s, &figures);
    }
    if wanted("dense") && !args.quick {
        let (step_s, figures) = ours::across(&args.link, ours::DENSE, 12)?;
        report_against("ours, dense f32", step_s, local_s, &figures);
    }
    match python.zip(torch_s) {
        Some((python, torch_s)) if !args.quick => pytorch_across(&args.link, &python, torch_s),
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

/// Seconds a step of two workers that do not talk: ours, and PyTorch's. They take turns, as the machine's speed drifts.
fn local(args: &Args, steps: u64, python: Option<&pytorch::Python>) -> Result<(f64, Option<f64>)> {
    let (turns, torch_steps) = if args.quick { (1, 8) } else { (3, 20) };
    let (mut ours_s, mut torch_s) = (0.0, 0.0);
    for turn in 1..=turns {
        progress(&format!("local, {turn} of {turns}"));
        ours_s += gpt::local(steps)? / f64::from(turns);
        if let Some(python) = python {
            torch_s += python.local(&[], torch_steps)? / f64::from(turns);
        }
    }
    report("ours, local", &Figure { metric: "step_s", value: ours_s, unit: "s" });
    if python.is_none() {
        return Ok((ours_s, None));
    }
    report("PyTorch, local", &Figure { metric: "step_s", value: torch_s, unit: "s" });
    report("ours, local", &Figure { metric: "step_s_over_pytorch", value: ours_s / torch_s, unit: "ratio" });
    Ok((ours_s, Some(torch_s)))
}

fn pytorch_across(link: &LinkConfig, python: &pytorch::Python, local_s: f64) -> Result<()> {
    let steps = pytorch::WARM_UP_STEPS + 8;
    for (case, hook) in
        [("PyTorch, DDP f32", "none"), ("PyTorch, DDP fp16", "fp16"), ("PyTorch, DDP PowerSGD", "powersgd")]
    {
        progress(case);
        let links = pytorch::links(link)?;
        let mode = ["ddp", "--hook", hook];
        match python.across(&links, &[], &mode, Duration::MAX, |times| times.len() >= steps)? {
            Some(times) => {
                let step_s = pytorch::mean(&times[pytorch::WARM_UP_STEPS..]);
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
    report(case, &Figure { metric: "step_s", value: step_s, unit: "s" });
    report(case, &Figure { metric: "share_of_local_speed", value: local_s / step_s, unit: "ratio" });
    more.iter().for_each(|figure| report(case, figure));
}

#[allow(clippy::print_stderr, reason = "progress of a command")]
fn progress(words: &str) {
    eprintln!("{words} ...");
}

#[allow(clippy::print_stdout, reason = "the command's result")]
fn report(case: &str, figure: &Figure) {
    let Figure { metric, unit, .. } = figure;
    print("wan", case, metric, rounded(figure.value), unit);
}
