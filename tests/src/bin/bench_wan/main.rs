//! Measures training across an emulated link, against the same training without one and against PyTorch.
//!
//! Everything shares this machine: two workers with a thread each, the coordinator and the emulator. So each case is compared with two
//! workers that train side by side and do not talk, in the same run. One JSON line per figure goes to stdout, progress to stderr.

mod ours;
mod pytorch;

use anyhow::Result;
use clap::Parser;
use longhaul_tests::wan::LinkConfig;

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
    let wanted = |case: &str| args.only.as_ref().is_none_or(|only| case.contains(only.as_str()));
    let steps = if args.quick { 24 } else { 60 };
    let local_s = measure("ours, local", || ours::local(steps))?;
    if wanted("sparse-local") {
        let (step_s, figures) = ours::across(&args.link, ours::SPARSE_LOCAL, steps)?;
        report_against("ours, sparse-local", step_s, local_s, &figures);
    }
    if wanted("dense") && !args.quick {
        let (step_s, figures) = ours::across(&args.link, ours::DENSE, 12)?;
        report_against("ours, dense f32", step_s, local_s, &figures);
    }
    if wanted("pytorch") {
        pytorch_cases(&args, local_s)?;
    }
    Ok(())
}

fn pytorch_cases(args: &Args, local_s: f64) -> Result<()> {
    let Some(python) = pytorch::find() else {
        progress(
            "python finds no torch (LONGHAUL_PYTHON names another interpreter): the PyTorch rows are left out",
        );
        return Ok(());
    };
    let torch_s = measure("PyTorch, local", || python.local(if args.quick { 8 } else { 20 }))?;
    report("ours, local", &Figure { metric: "step_s_over_pytorch", value: local_s / torch_s, unit: "ratio" });
    if args.quick {
        return Ok(());
    }
    for (case, hook) in
        [("PyTorch, DDP f32", "none"), ("PyTorch, DDP fp16", "fp16"), ("PyTorch, DDP PowerSGD", "powersgd")]
    {
        progress(case);
        match python.across(&args.link, hook)? {
            Some(step_s) => report_against(case, step_s, torch_s, &[]),
            None => {
                progress("no root or no TUN device: the PyTorch rows over the link are left out");
                return Ok(());
            }
        }
    }
    Ok(())
}

fn measure(case: &str, run: impl FnOnce() -> Result<f64>) -> Result<f64> {
    progress(case);
    let step_s = run()?;
    report(case, &Figure { metric: "step_s", value: step_s, unit: "s" });
    Ok(step_s)
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
    let value = (figure.value * 1000.0).round() / 1000.0;
    let Figure { metric, unit, .. } = figure;
    println!(
        "{}",
        serde_json::json!({"bench": "wan", "case": case, "metric": metric, "value": value, "unit": unit})
    );
}
