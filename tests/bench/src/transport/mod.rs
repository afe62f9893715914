//! Measures the QUIC transport over emulated long links, against the targets of `proto/docs/transport.md`.
//!
//! One JSON line per figure goes to stdout, progress to stderr. Sender, receiver and emulator share this
//! process and this machine: with few cores a fast link measures the machine.

mod case;
mod control;
mod routed;
mod transfer;
mod wan;

use anyhow::Result;
use tokio::runtime::Runtime;

use crate::kit::args::{Only, Quick};
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use case::Case;

/// Goodput, control latency and CPU time of the transport over emulated long links
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    only: Only,
}

/// Measures each case by itself; in a quick run, the most informative ones.
pub fn run(args: &Args) -> Result<()> {
    let recorder = Recorder::new("transport").rounded_to(3);
    let runtime = Runtime::new()?;
    let wanted = |case: &Case| (!args.quick.quick || case.in_quick) && args.only.wants(&case.name());
    for case in case::all().into_iter().filter(wanted) {
        let name = case.name();
        progress(format!("{name} ..."));
        for (part, figure) in runtime.block_on(Box::pin(case.measure()))? {
            recorder.print_all(format!("{name} {part}").trim_end(), [figure]);
        }
    }
    Ok(())
}
