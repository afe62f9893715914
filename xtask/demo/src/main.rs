//! `longhaul-demo`: the demo with programs that are already built.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use longhaul_demo::{Options, Parts, Programs};

/// Train across an emulated WAN, on this machine: two sites, and a slow link between them.
#[derive(Parser)]
#[command(name = "longhaul-demo", version)]
struct Arguments {
    /// Folder of the coordinator, the worker and the WAN emulator [default: where this program is].
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Folder of the examples [default: `examples` beside the folder of this program].
    #[arg(long, value_name = "FOLDER")]
    examples: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let own = std::env::current_exe().context("find this program")?;
    let bin = own.parent().context("find the folder of this program")?;
    let programs = Programs::of(arguments.programs.unwrap_or_else(|| bin.to_owned()))?;
    let examples = arguments.examples.unwrap_or_else(|| bin.parent().unwrap_or(bin).join("examples"));
    longhaul_demo::run(&programs, &examples, Path::new("longhaul-demo"), &arguments.options, Parts::default())
}
