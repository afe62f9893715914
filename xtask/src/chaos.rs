//! `cargo xtask chaos`: faults of all kinds while a run trains, and whether it keeps its promises. The harness is a binary of the end-to-end tests, which knows the options.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench::build_binaries;
use crate::checkout::Checkout;
use crate::setup;

/// What `cargo xtask chaos` accepts: all of it is for the harness.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// `--minutes M --seed S --sites 2,2 --gap SECONDS --only KINDS …`; `--help` explains all.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<String>,
}

/// Builds all binaries and the harness, and runs it.
///
/// # Errors
/// It does not build, or a promise was broken.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    setup::ensure(checkout)?;
    build_binaries(checkout)?;
    let mut command = checkout.cargo();
    command.args(["run", "--release", "--locked", "--package", "longhaul-tests", "--bin", "chaos", "--"]);
    let status =
        command.args(&options.arguments).stdin(Stdio::null()).status().context("start the harness")?;
    if !status.success() {
        bail!("the run did not keep a promise, or the harness could not do its work (above): {status}");
    }
    Ok(())
}
