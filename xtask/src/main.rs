//! Plain automation for a checkout: set-up, test, bench, demo. `cargo xtask --help` lists it.
//!
//! This crate never knows torch: it has to build before libtorch is there.

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
    /// Fetch libtorch into the user's cache folder and link this checkout to it.
    Setup(setup::Options),
    /// Verify all that CI verifies, without writing to the tree.
    Test(verify::Options),
    /// Run a benchmark and show its figures.
    Bench(bench::Options),
    /// Train across an emulated WAN, on this machine, with the real binaries.
    Demo(demo::Options),
    /// Pack the programs with all that they need, for machines that have neither Rust nor Python.
    Dist(dist::Options),
    /// Let faults of all kinds happen to a run, and see whether it keeps its promises.
    Chaos(chaos::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        // Not returned from main: with RUST_BACKTRACE set that would bury the remedy under a stack trace.
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
