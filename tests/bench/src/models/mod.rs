//! Models and fine-tuning beside transformers and PEFT: steps of every family, loading, two sites beside one, and visible changes beside all.

mod cases;
mod load;
pub mod own;
mod side;
mod sites;
mod steps;

use std::path::Path;

use anyhow::{Context, Result};
use longhaul_emulator::LinkConfig;
use longhaul_tests::interrupt;

use crate::kit::args::{Only, Python, Quick};
use crate::kit::progress;

/// Steps of every family and of adapters beside transformers and PEFT (--python), loading, and fine-tuning by two sites: adapters, and visible changes of all weights
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    python: Python,
    #[command(flatten)]
    only: Only,
    /// One part alone
    #[arg(long, value_enum)]
    part: Option<Part>,
    /// Measured steps of a case: 20, or 4 with --quick
    #[arg(long)]
    steps: Option<u32>,
    /// Each direction of the link between the two sites
    #[arg(long, default_value = "rate_mbit=10,delay_ms=25")]
    link: LinkConfig,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Steps,
    Load,
    Sites,
    Visible,
}

/// Measures each case in turns with the reference's process.
pub fn run(args: &Args) -> Result<()> {
    interrupt::watch()?;
    let (wants, quick) = (|part| args.part.is_none_or(|only| only == part), args.quick.quick);
    let python = args.python.python.as_deref();
    let python = || -> Result<&Path> {
        python.context("give a Python that has transformers and PEFT: --python PROGRAM")
    };
    if wants(Part::Steps) {
        let steps = args.steps.unwrap_or(args.quick.choose(4, 20));
        for case in cases::all(quick).into_iter().filter(|case| args.only.wants(&case.name)) {
            progress(&case.name);
            steps::measure(&case, python()?, steps)?;
        }
    }
    if wants(Part::Load) {
        load::run(python()?, quick)?;
    }
    if wants(Part::Sites) {
        sites::run(&args.link, quick)?;
    }
    if wants(Part::Visible) {
        sites::run_visible(quick)?;
    }
    Ok(())
}
