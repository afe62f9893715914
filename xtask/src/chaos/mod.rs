//! `cargo xtask chaos`: injects faults of all kinds into a training run and checks its guarantees. The
//! harness is a binary of the end-to-end tests.

mod known_bugs;
mod mirror;
mod simulated;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::bench::build_binaries;
use crate::checkout::Checkout;
use crate::setup;

/// Options of `cargo xtask chaos`; the harness has the defaults.
#[derive(Args)]
pub struct Options {
    /// Duration of the faults [default: 2].
    #[arg(long)]
    minutes: Option<f64>,
    /// The same seed gives the same faults at the same times [default: 1].
    #[arg(long)]
    seed: Option<u64>,
    /// Workers in each site [default: 2,2].
    #[arg(long)]
    sites: Option<String>,
    /// Seconds from one fault to the next [default: 10].
    #[arg(long)]
    gap: Option<f64>,
    /// Seconds before the first fault, in which the speed without faults is measured [default: 15].
    #[arg(long)]
    calm: Option<f64>,
    /// Pause after this number of faults, and compare the throughput of these pauses.
    #[arg(long, value_name = "FAULTS")]
    break_after: Option<NonZeroUsize>,
    /// Steps from one exchange to the next, of some 25 ms each [default: 4].
    #[arg(long)]
    every: Option<u64>,
    /// Steps between an exchange and the use of its result [default: 1].
    #[arg(long)]
    overlap: Option<u64>,
    /// Maximum seconds without a new round [default: 30].
    #[arg(long)]
    progress_max: Option<f64>,
    /// Only these faults, such as `kill,freeze,cut`; an unknown word lists all.
    #[arg(long)]
    only: Option<String>,
    /// Each direction of each link, such as `rate_mbit=50,delay_ms=10,loss_percent=0.1`.
    #[arg(long)]
    link: Option<String>,
    /// Keep all files here, including logs.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Put bugs back one at a time, all of `tests/known_bugs` or the named ones, and check that chaos finds
    /// them. The first takes as long as a first build.
    #[arg(long, value_name = "NAMES", num_args = 0..=1, value_delimiter = ',', require_equals = true, exclusive = true)]
    known_bugs: Option<Vec<String>>,
    /// Virtual time instead of real processes: simulated runs of few rounds and of many, one seed after the
    /// other.
    #[arg(long)]
    simulated: bool,
    /// The seeds [default: 0..100000].
    #[arg(long, value_name = "FROM..TO", requires = "simulated")]
    seeds: Option<simulated::Seeds>,
}

impl Options {
    fn arguments(&self) -> Vec<String> {
        let path = self.dir.as_ref().map(|dir| dir.display().to_string());
        let given = [
            ("--minutes", self.minutes.map(|minutes| minutes.to_string())),
            ("--seed", self.seed.map(|seed| seed.to_string())),
            ("--sites", self.sites.clone()),
            ("--gap", self.gap.map(|gap| gap.to_string())),
            ("--calm", self.calm.map(|calm| calm.to_string())),
            ("--break-after", self.break_after.map(|faults| faults.to_string())),
            ("--every", self.every.map(|every| every.to_string())),
            ("--overlap", self.overlap.map(|overlap| overlap.to_string())),
            ("--progress-max", self.progress_max.map(|most| most.to_string())),
            ("--only", self.only.clone()),
            ("--link", self.link.clone()),
            ("--dir", path),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?]));
        given.flatten().collect()
    }
}

/// Builds all binaries and runs the harness.
///
/// # Errors
/// Returns an error if they do not build, if a guarantee was broken, in the harness or by a seed, or if a
/// known bug was not found.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    if options.simulated {
        if let Some(other) = options.arguments().first() {
            bail!("{other} is for real processes, not for --simulated");
        }
        return simulated::run(checkout, options.seeds.unwrap_or_default());
    }
    setup::ensure(checkout)?;
    if let Some(names) = &options.known_bugs {
        return known_bugs::run(checkout, names);
    }
    build_binaries(checkout)?;
    let mut command = checkout.cargo();
    command.args(["run", "--release", "--locked", "--package", "longhaul-tests", "--bin", "chaos", "--"]);
    let status =
        command.args(options.arguments()).stdin(Stdio::null()).status().context("start the harness")?;
    if !status.success() {
        bail!("a guarantee was broken, or the harness failed (see above): {status}");
    }
    Ok(())
}
