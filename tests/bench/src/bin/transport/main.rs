//! Measures the QUIC transport over emulated long links, against the targets of `proto/docs/transport.md`.
//!
//! One JSON line per figure goes to stdout, progress to stderr. Sender, receiver and emulator share this
//! process and this machine: on few cores a fast link measures the machine.

mod case;
mod control;
mod cpu;
mod routed;
mod transfer;
mod wan;

use anyhow::Result;
use case::Case;
use clap::Parser;
use longhaul_bench::figures::{print, rounded};

/// Goodput, control latency and CPU time of the transport over emulated long links.
#[derive(Parser)]
struct Args {
    /// Only the cases that show the most, under a minute.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let wanted = |case: &Case| {
        (!args.quick || case.in_quick) && args.only.as_ref().is_none_or(|only| case.name().contains(only))
    };
    for case in case::all().into_iter().filter(wanted) {
        show_progress(&case);
        for figure in Box::pin(case.measure()).await? {
            report(&case, &figure);
        }
    }
    Ok(())
}

#[allow(clippy::print_stderr, reason = "progress of a command")]
fn show_progress(case: &Case) {
    eprintln!("{} ...", case.name());
}

fn report(case: &Case, figure: &case::Figure) {
    let name = format!("{} {}", case.name(), figure.part);
    print("transport", name.trim_end(), figure.metric, rounded(figure.value), figure.unit);
}
