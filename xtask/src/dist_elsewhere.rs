//! `cargo xtask dist` of an xtask built without it, as its dependencies would be compiled for every other
//! command too.

use std::ffi::OsString;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::checkout::Checkout;

/// All arguments, including `--help`, are passed to an xtask with the command.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Options of the command; `cargo xtask dist --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    arguments: Vec<OsString>,
}

/// Builds an xtask with all features, and runs the same command with it.
///
/// # Errors
/// Returns an error if it does not build or fails.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    let mut command = checkout.cargo();
    command.args(["run", "--profile", "demo", "--locked", "--package", "xtask", "--", "dist"]);
    let status = command.args(&options.arguments).status().context("start cargo run")?;
    ensure!(status.success(), "nothing was packed (see above)");
    Ok(())
}
