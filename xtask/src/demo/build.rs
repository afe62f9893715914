//! Builds the programs of the demo and shows the progress.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, IsTerminal as _, stderr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Profile;
use crate::checkout::Checkout;

/// Packages of the programs that a demo starts.
pub const PACKAGES: [&str; 4] =
    ["longhaul-coordinator", "longhaul-worker", "longhaul-worker-launch", "longhaul-emulator"];

/// Without a terminal, a line is printed each time this number of crates is done.
const CRATES_A_LINE: usize = 25;

/// The parts of a line of `cargo build --message-format json` used here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    #[serde(default)]
    fresh: bool,
}

/// Builds the programs and returns their folder. On a terminal cargo draws its own progress bar.
///
/// # Errors
/// Returns an error if they do not build; the compiler prints the cause.
pub fn programs(checkout: &Checkout, profile: Profile) -> Result<PathBuf> {
    let (name, folder) = match profile {
        Profile::Demo => ("demo", "demo"),
        Profile::Release => ("release", "release"),
        Profile::Dev => ("dev", "debug"),
    };
    let mut command = checkout.cargo();
    command.args(["build", "--locked", "--profile", name, "--bins"]);
    match profile {
        Profile::Demo => select(&mut command),
        // The whole workspace: for some packages alone, cargo would select other features of shared
        // dependencies.
        Profile::Release | Profile::Dev => command.arg("--workspace"),
    };
    let is_terminal = stderr().is_terminal();
    if !is_terminal {
        command.args(["--quiet", "--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    }
    let all = if is_terminal { None } else { Some(crates(checkout, profile)?) };
    let mut child = command.stdin(Stdio::null()).spawn().context("start cargo build")?;
    if let (Some(all), Some(lines)) = (all, child.stdout.take()) {
        let mut progress = Progress::new(all);
        for line in BufReader::new(lines).lines() {
            if let Some(said) = progress.heard(&line.context("read cargo's messages")?) {
                eprintln!("{said}");
            }
        }
    }
    if !child.wait().context("wait for cargo build")?.success() {
        bail!("the programs do not build");
    }
    Ok(checkout.target_directory()?.join(folder))
}

fn select(command: &mut Command) -> &mut Command {
    command.arg("--no-default-features").args(PACKAGES.iter().flat_map(|package| ["--package", package]))
}

/// Returns the number of crates in the programs.
fn crates(checkout: &Checkout, profile: Profile) -> Result<usize> {
    let mut command = checkout.cargo();
    command.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    match profile {
        Profile::Demo => select(&mut command),
        Profile::Release | Profile::Dev => command.arg("--workspace"),
    };
    let output = command.output().context("run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // A package is listed once for each dependent package, with a mark on all but the first.
    let names = text.lines().filter_map(|line| line.split(" (").next()).filter(|name| !name.is_empty());
    Ok(names.collect::<BTreeSet<_>>().len())
}

/// Number of compiled crates, of all.
struct Progress {
    all: usize,
    done: BTreeSet<String>,
    has_compiled: bool,
    said: usize,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { all, done: BTreeSet::new(), has_compiled: false, said: 0 }
    }

    /// Reads a line of cargo's output. Returns a line to print each time some more crates are done, and
    /// nothing if no crate is compiled.
    fn heard(&mut self, line: &str) -> Option<String> {
        let message: Message = serde_json::from_str(line).ok()?;
        if message.reason != "compiler-artifact" {
            return None;
        }
        self.has_compiled |= !message.fresh;
        self.done.insert(message.package_id?);
        let done = self.done.len();
        let is_due = done >= self.said + CRATES_A_LINE;
        if !is_due || !self.has_compiled {
            return None;
        }
        self.said = done;
        Some(format!("compiling: {done} of {} crates", self.all.max(done)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(package: usize, is_fresh: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"p{package}","fresh":{is_fresh},"target":{{}}}}"#
        )
    }

    #[test]
    fn crates_are_counted_once_and_told_now_and_then() {
        let mut progress = Progress::new(60);
        let said: Vec<String> = (0..60)
            .flat_map(|package| [line(package, false), line(package, false)])
            .filter_map(|line| progress.heard(&line))
            .collect();
        assert_eq!(said, ["compiling: 25 of 60 crates", "compiling: 50 of 60 crates"]);
        assert_eq!(progress.heard(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(progress.heard("no JSON"), None);
    }

    #[test]
    fn nothing_is_told_of_crates_that_were_there() {
        let mut progress = Progress::new(60);
        assert!((0..60).all(|package| progress.heard(&line(package, true)).is_none()));
    }
}
