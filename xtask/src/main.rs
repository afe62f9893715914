//! Plain automation for a checkout: set-up, test, bench, demo. `cargo xtask --help` lists it.
//!
//! This crate never knows torch: it has to build before libtorch is there.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its user")]

mod checkout;
mod setup;

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
    }
}
