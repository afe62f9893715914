//! Chaos in virtual time: seeds of simulated runs, of few rounds and of many, many more than in the tests.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::checkout::Checkout;
use crate::clock;

/// Seeds per process: some seconds.
const CHUNK: u64 = 1000;

/// From this number of seeds on, two minutes of optimised compilation pay off. Checks of test builds stay on.
const OPTIMISED_FROM: u64 = 20_000;
/// The packages that take most of the simulations' time.
const OPTIMISED: [&str; 5] =
    ["longhaul-common", "longhaul-proto", "longhaul-run", "longhaul-member", "longhaul-sim"];

/// A test that takes its seeds from `LONGHAUL_SEEDS`.
struct Simulation {
    what: &'static str,
    /// The package's folder.
    folder: &'static str,
    /// The cargo target.
    target: &'static [&'static str],
    test: &'static str,
    /// Tries one seed of this number, as each takes that much longer.
    one_in: u64,
}

/// The release coordinator and members, with codecs and checkpoints.
const MEMBERS: Simulation = Simulation {
    what: "the run",
    folder: "coordinator/sim",
    target: &["--package", "longhaul-sim", "--test", "seeds"],
    test: "whatever_happens_the_run_finishes_with_one_state_and_each_sample_once",
    one_in: 50,
};

const SIMULATIONS: [Simulation; 2] = [
    Simulation {
        what: "the rounds",
        folder: "coordinator/sim",
        target: &["--package", "longhaul-sim", "--test", "rounds"],
        test: "any_mixture_of_faults_is_survived",
        one_in: 4,
    },
    MEMBERS,
];

/// Seeds from one to another, without the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seeds {
    from: u64,
    to: u64,
}

impl FromStr for Seeds {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (from, to) = text.split_once("..").context("seeds are FROM..TO, such as 0..100000")?;
        let number = |text: &str| text.parse().with_context(|| format!("{text:?} is no seed"));
        let (from, to) = (number(from)?, number(to)?);
        ensure!(from < to, "there is no seed in {from}..{to}");
        Ok(Self { from, to })
    }
}

impl Seeds {
    /// The first seeds, one part in `share`.
    fn one_in(self, share: u64) -> Self {
        Self { from: self.from, to: self.from + (self.to - self.from).div_ceil(share) }
    }
}

impl Default for Seeds {
    fn default() -> Self {
        Self { from: 0, to: 100_000 }
    }
}

/// Runs few rounds and many over these seeds.
///
/// # Errors
/// Returns an error if they do not build, or if a seed breaks a guarantee: the error names the seed and the
/// command to replay it.
pub fn run(checkout: &Checkout, seeds: Seeds) -> Result<()> {
    for simulation in &SIMULATIONS {
        let began = clock::now();
        let seeds = seeds.one_in(simulation.one_in);
        let failures = simulation.run_in(checkout, seeds)?;
        if let Some(first) = failures.first() {
            eprintln!("{first}");
            bail!(
                "{}: a guarantee was broken in {} of the parts of the seeds",
                simulation.what,
                failures.len()
            );
        }
        let Seeds { from, to } = seeds;
        println!("{}: seeds {from}..{to} hold, {} s", simulation.what, began.elapsed().as_secs());
    }
    Ok(())
}

/// Returns the simulation in which one of these seeds breaks a guarantee; `None`: all hold.
///
/// # Errors
/// Returns an error if they do not build.
pub fn broken(checkout: &Checkout, seeds: Seeds) -> Result<Option<&'static str>> {
    for simulation in &SIMULATIONS {
        if !simulation.run_in(checkout, seeds.one_in(simulation.one_in))?.is_empty() {
            return Ok(Some(simulation.what));
        }
    }
    Ok(None)
}

/// Returns the test of the simulation with members that fails with these seeds; `None`: all hold.
///
/// # Errors
/// Returns an error if it does not build.
pub fn broken_with_members(checkout: &Checkout, seeds: Seeds) -> Result<Option<String>> {
    let binary = build(checkout, &MEMBERS, seeds)?;
    let mut command = Command::new(&binary);
    command.current_dir(checkout.root().join(MEMBERS.folder)).stdin(Stdio::null());
    let output = command.env("LONGHAUL_SEEDS", format!("{}..{}", seeds.from, seeds.to)).output();
    let output = output.with_context(|| format!("start {}", binary.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = said.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    ensure!(
        output.status.success() || failed.is_some(),
        "{} ends with no test that failed",
        binary.display()
    );
    Ok(failed.map(str::to_owned))
}

impl Simulation {
    /// Builds it and tries these seeds.
    fn run_in(&self, checkout: &Checkout, seeds: Seeds) -> Result<Vec<String>> {
        let binary = build(checkout, self, seeds)?;
        self.run(&binary, &checkout.root().join(self.folder), seeds)
    }

    /// Runs the seeds in parts, one per core at a time. Returns the output of the failed parts. After a
    /// failure no new part starts.
    fn run(&self, binary: &Path, folder: &Path, seeds: Seeds) -> Result<Vec<String>> {
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} seeds, {eta} left")
            .context("lay out the progress")?;
        let progress = ProgressBar::new(seeds.to - seeds.from).with_style(style).with_prefix(self.what);
        let (next, failed) = (AtomicU64::new(seeds.from), AtomicBool::new(false));
        let work = || {
            let mut failures = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let from = next.fetch_add(CHUNK, Ordering::Relaxed);
                if from >= seeds.to {
                    break;
                }
                let to = seeds.to.min(from + CHUNK);
                let output = self.try_seeds(binary, folder, from, to)?;
                if !output.status.success() {
                    failed.store(true, Ordering::Relaxed);
                    failures.push(String::from_utf8_lossy(&output.stdout).into_owned());
                }
                progress.inc(to - from);
            }
            Ok(failures)
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let outcomes: Vec<Result<Vec<String>>> = thread::scope(|scope| {
            let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|worker| worker.join());
            ended.map(|outcome| outcome.unwrap_or_else(|_| bail!("a thread panicked"))).collect()
        });
        progress.finish_and_clear();
        Ok(outcomes.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    fn try_seeds(&self, binary: &Path, folder: &Path, from: u64, to: u64) -> Result<Output> {
        let mut command = Command::new(binary);
        command.current_dir(folder).args([self.test, "--exact"]).stdin(Stdio::null());
        let output = command.env("LONGHAUL_SEEDS", format!("{from}..{to}")).output();
        let output = output.with_context(|| format!("start {}", binary.display()))?;
        // With another test name, no test would fail.
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(said.contains("running 1 test"), "{} has no test {}", binary.display(), self.test);
        Ok(output)
    }
}

/// Builds the tests and returns their binary.
fn build(checkout: &Checkout, simulation: &Simulation, seeds: Seeds) -> Result<PathBuf> {
    let mut command = checkout.cargo();
    if seeds.to - seeds.from >= OPTIMISED_FROM {
        for package in OPTIMISED {
            command.args(["--config", &format!("profile.dev.package.{package}.opt-level=2")]);
        }
    }
    command.args(["test", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.args(simulation.target).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("start cargo test")?;
    ensure!(output.status.success(), "the simulation of {} does not build", simulation.what);
    executable_in(&String::from_utf8_lossy(&output.stdout)).context("cargo names no binary of the tests")
}

/// Returns the last binary in cargo's messages.
fn executable_in(messages: &str) -> Option<PathBuf> {
    let read = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    read.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_with_something_in_it() {
        assert_eq!("7..9".parse::<Seeds>().unwrap(), Seeds { from: 7, to: 9 });
        assert_eq!(Seeds { from: 7, to: 107 }.one_in(50), Seeds { from: 7, to: 9 });
        assert_eq!(Seeds { from: 7, to: 8 }.one_in(50), Seeds { from: 7, to: 8 });
        for wrong in ["7", "7..x", "9..9", "9..7", "..", "-1..4"] {
            assert!(wrong.parse::<Seeds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_binary_is_the_one_that_cargo_built_last() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n{\"executable\":\"/a/b\"}\n{\"executable\":\"/a/c\"}\nnot json\n";
        assert_eq!(executable_in(messages), Some(PathBuf::from("/a/c")));
        assert_eq!(executable_in("{}"), None);
    }
}
