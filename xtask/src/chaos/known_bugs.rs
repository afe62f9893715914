//! The sensitivity of the chaos harness: known bugs are put back one at a time, and the harness has to find
//! each.
//!
//! Each is a patch in `tests/known_bugs`, applied to a copy of the working tree, never to the tree itself.
//! The copy has its own target folder, so the first bug takes as long as a first build.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::mirror::mirror;
use super::simulated::{self, Seeds};
use crate::bench::build_binaries;
use crate::checkout::Checkout;
use crate::clock;

/// Their folder, relative to the root of a checkout.
const FOLDER: &str = "tests/known_bugs";

/// A bug and the check that should find it.
#[derive(Debug, PartialEq, Eq)]
struct KnownBug {
    name: String,
    patch: PathBuf,
    /// Its description.
    what: String,
    found_by: FoundBy,
}

/// The check that should find a bug.
#[derive(Debug, PartialEq, Eq)]
enum FoundBy {
    /// One of these checks of the harness, run with these arguments.
    Chaos { checks: Vec<String>, arguments: Vec<String> },
    /// One of these seeds of the simulations; no status of a run shows the bug.
    Simulation(Seeds),
    /// A test of the simulation with members, with these seeds.
    Members(Seeds),
}

impl KnownBug {
    /// Reads a patch, which starts with lines that describe it.
    fn read(patch: &Path) -> Result<Self> {
        let text = fs::read_to_string(patch).with_context(|| format!("read {}", patch.display()))?;
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let needed =
            |name: &str| line(name).with_context(|| format!("{} has no line `{name} …`", patch.display()));
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let found_by = match (line("Simulated:"), line("With members:")) {
            (Some(seeds), _) => FoundBy::Simulation(seeds.parse()?),
            (None, Some(seeds)) => FoundBy::Members(seeds.parse()?),
            (None, None) => FoundBy::Chaos {
                checks: needed("Found by:")?.split(',').map(|check| check.trim().to_owned()).collect(),
                arguments: needed("Chaos:")?.split_whitespace().map(str::to_owned).collect(),
            },
        };
        Ok(Self { name, patch: patch.to_owned(), what: needed("What:")?.to_owned(), found_by })
    }

    /// Returns all bugs of a checkout, by name.
    fn all(root: &Path) -> Result<Vec<Self>> {
        let folder = root.join(FOLDER);
        let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let mut patches: Vec<_> =
            paths.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "patch")).collect();
        patches.sort();
        patches.iter().map(|patch| Self::read(patch)).collect()
    }

    /// Applies it to the sources under `root`.
    fn apply(&self, root: &Path, only_look: bool) -> Result<()> {
        let mut git = Command::new("git");
        // Within a repository git would skip files outside the current folder of its working tree.
        git.current_dir(root).env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root));
        git.args(["apply", "--whitespace=nowarn"]).args(only_look.then_some("--check")).arg(&self.patch);
        let output = git.output().context("start git")?;
        ensure!(
            output.status.success(),
            "the known bug {} no longer applies to the sources; put it back by hand and recreate its patch:\n{}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Returns the seeds of the simulations that should find it.
    fn seeds(&self) -> Option<Seeds> {
        match self.found_by {
            FoundBy::Simulation(seeds) => Some(seeds),
            FoundBy::Members(_) | FoundBy::Chaos { .. } => None,
        }
    }

    /// Runs its check on a checkout that contains it. Returns the check that found it, or the reason why none
    /// did.
    fn look(&self, copy: &Checkout, log: &Path) -> Result<Result<String, String>> {
        match &self.found_by {
            FoundBy::Chaos { checks, arguments } => {
                build_binaries(copy)?;
                let has_passed = soak(copy, arguments, log)?;
                let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
                Ok(verdict(checks, has_passed, &text))
            }
            FoundBy::Simulation(seeds) => {
                let broken = simulated::broken(copy, *seeds)?;
                Ok(broken.map(str::to_owned).ok_or_else(|| "all seeds hold".to_owned()))
            }
            FoundBy::Members(seeds) => {
                let broken = simulated::broken_with_members(copy, *seeds)?;
                Ok(broken.ok_or_else(|| "all seeds hold".to_owned()))
            }
        }
    }
}

/// The result of the harness for a bug: the check that found it, if it is one of the expected ones.
fn verdict(checks: &[String], has_passed: bool, log: &str) -> Result<String, String> {
    if has_passed {
        return Err("every guarantee held".to_owned());
    }
    let found = checks.iter().find(|check| log.contains(&format!("{check}: ")));
    found.cloned().ok_or_else(|| format!("the harness ended with another error, see its log:\n{}", tail(log)))
}

/// Returns the end of a log, for people.
fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Puts each bug back, or the named ones, and runs chaos on it.
///
/// # Errors
/// Returns an error if one is not found, or if its patch no longer applies.
pub fn run(checkout: &Checkout, names: &[String]) -> Result<()> {
    let bugs = KnownBug::all(checkout.root())?;
    if let Some(unknown) = names.iter().find(|name| bugs.iter().all(|bug| bug.name != **name)) {
        let known: Vec<_> = bugs.iter().map(|bug| bug.name.as_str()).collect();
        bail!("no known bug is called `{unknown}`; the known bugs are {}", known.join(", "));
    }
    let work = checkout.root().join("target/known-bugs");
    let copy = Checkout::copy(work.join("checkout"));
    let mut missed = Vec::new();
    let wanted = || bugs.iter().filter(|bug| names.is_empty() || names.contains(&bug.name));
    // A simulation reports a failure, not its cause: without the bug it must find nothing.
    let seeds: BTreeSet<_> = wanted().filter_map(KnownBug::seeds).collect();
    if !seeds.is_empty() {
        mirror(checkout, copy.root())?;
    }
    for seeds in seeds {
        let broken = simulated::broken(&copy, seeds)?;
        ensure!(broken.is_none(), "the simulations fail without any known bug: try `--simulated`");
    }
    for bug in wanted() {
        eprintln!("{}: {}", bug.name, bug.what);
        mirror(checkout, copy.root())?;
        bug.apply(copy.root(), false)?;
        let log = work.join(format!("{}.log", bug.name));
        let began = clock::now();
        match bug.look(&copy, &log)? {
            Ok(check) => {
                println!("{}: found by `{check}`, {} s with its build", bug.name, began.elapsed().as_secs());
            }
            Err(why) => {
                println!("{}: NOT FOUND: {why}", bug.name);
                missed.push(bug.name.as_str());
            }
        }
    }
    ensure!(missed.is_empty(), "chaos does not find {}", missed.join(", "));
    Ok(())
}

/// Runs the harness of the copy. Returns whether it found nothing.
fn soak(copy: &Checkout, arguments: &[String], log: &Path) -> Result<bool> {
    let file = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
    let mut command = Command::new(copy.root().join("target/release/chaos"));
    command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Ok(command.status().context("start the harness")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bug_fits_the_sources_and_says_what_finds_it() {
        let checkout = Checkout::of_this_run();
        let bugs = KnownBug::all(checkout.root()).unwrap();
        assert!(bugs.len() >= 5, "{bugs:?}");
        for bug in bugs {
            bug.apply(checkout.root(), true).unwrap();
            assert!(!bug.what.is_empty(), "{bug:?}");
        }
    }

    #[test]
    fn a_bug_is_found_by_one_of_its_checks_and_not_by_any_error() {
        let checks = ["parity", "ends"].map(str::to_owned);
        assert_eq!(verdict(&checks, false, "Caused by:\n    ends: worker 1 ended"), Ok("ends".to_owned()));
        assert!(verdict(&checks, true, "ends: nothing").is_err());
        assert!(verdict(&checks, false, "error: no such file").is_err());
    }
}
