//! Automation for a checkout: setup, test, bench, demo. `cargo xtask --help` lists the commands.
//!
//! This crate must not depend on torch: it has to build before libtorch is present.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its user")]

mod bench;
mod chaos;
mod checkout;
mod clock;
mod demo;
#[cfg(feature = "dist")]
mod dist;
#[cfg(not(feature = "dist"))]
#[path = "dist_elsewhere.rs"]
mod dist;
mod setup;
mod table;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::checkout::Checkout;

/// Automation for a checkout of Longhaul.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Download libtorch into the user's cache folder and link this checkout to it.
    Setup(setup::Options),
    /// Run all checks of CI, without writing to the tree.
    Test(verify::Options),
    /// Run a benchmark and show its figures.
    Bench(bench::Options),
    /// Train across an emulated WAN, on this machine, with the real binaries.
    Demo(demo::Options),
    /// Pack the programs with all their dependencies, for machines without Rust and Python.
    Dist(dist::Options),
    /// Inject faults of all kinds into a run and check its guarantees.
    Chaos(chaos::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        // Not returned from main: with RUST_BACKTRACE set, a stack trace would hide the remedy.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    let checkout = Checkout::of_this_run();
    match command {
        Command::Setup(options) => setup::run(&checkout, options),
        Command::Test(options) => verify::run(&checkout, options),
        Command::Bench(options) => bench::run(&checkout, options),
        Command::Demo(options) => demo::run(&checkout, options),
        Command::Dist(options) => dist::run(&checkout, options),
        Command::Chaos(options) => chaos::run(&checkout, options),
    }
}
