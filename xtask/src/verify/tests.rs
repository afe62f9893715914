//! The tests: built at once with one set of features, run by cargo, and timed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, pipe};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::checkout::Checkout;
use crate::verify::notices::NOTICES;
use crate::verify::timed::Timed;

/// For OpenTelemetry collectors: enabled in every step that compiles, so that nothing is compiled twice.
pub const FEATURES: &str = "longhaul-coordinator/otel,longhaul-worker/otel";
/// Makes cargo start each test program with a line that names its package, and with the variable that makes
/// the stable test harness time its tests. The compiler must not see the variable: build scripts watch it, so
/// half of all crates would be recompiled.
const RUNNER: &str = r#"target.'cfg(unix)'.runner = ["sh", "-c", 'echo "tests of $CARGO_PKG_NAME" && RUSTC_BOOTSTRAP=1 exec "$0" "$@"']"#;

/// Minimum number of parallel tests of a program: many wait for a clock or a link, with idle cores.
const THREADS_MIN: usize = 4;
/// Whole runs take turns, and those that require an idle machine wait for all others: a waiting thread costs
/// nothing.
const THREADS_OF_RUNS: usize = 16;
/// The program of whole runs.
const RUNS: &str = "run";

/// The tests to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Unit tests of libraries and programs.
    Units,
    /// All that CI runs.
    All,
    /// Whole runs of real processes that take too long for CI.
    Night,
}

impl Which {
    /// Returns cargo's options for the targets to build. Examples are checked by clippy and never linked;
    /// documentation contains no runnable code. `--tests` selects all targets with tests, including libraries
    /// and programs, and builds the programs that others start; `--bins` would link a harness for programs
    /// without tests.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Units => &["--workspace", "--lib", "--bins"],
            Self::All => &["--workspace", "--tests"],
            Self::Night => &["--workspace", "--test", "run"],
        }
    }
}

/// Compiles and links everything that [`run`] starts.
pub fn build(checkout: &Checkout, which: Which) -> Command {
    let mut command = checkout.cargo();
    command.args(["test", "--locked", "--features", FEATURES, "--no-run"]).args(which.targets());
    command
}

/// Tests of one cargo call, program by program.
struct Part {
    /// Options of cargo that select the programs.
    targets: Vec<String>,
    /// Options of the harness that select the tests.
    selection: &'static [&'static str],
    threads: usize,
}

impl Part {
    fn new(targets: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let targets = targets.into_iter().map(Into::into).collect();
        Self { targets, selection: &[], threads: cores.max(THREADS_MIN) }
    }

    fn of_runs(selection: &'static [&'static str]) -> Self {
        let part = Self::new(["--test", RUNS]);
        Self { selection, threads: part.threads.max(THREADS_OF_RUNS), ..part }
    }
}

/// Runs the tests, streams their output, and returns their durations.
///
/// # Errors
/// Returns an error if one failed.
pub fn run(checkout: &Checkout, which: Which, notices: &Path) -> Result<Timed> {
    let mut timed = Timed::default();
    for together in parts(checkout, which)? {
        let ended: Vec<Result<Timed>> = thread::scope(|scope| {
            let start = |part| scope.spawn(|| run_part(checkout, part, notices));
            let running: Vec<_> = together.into_iter().map(start).collect();
            let ended = running.into_iter().map(|part| part.join());
            ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        for part in ended {
            timed.add(part?);
        }
    }
    if timed.has_failures() {
        bail!("cargo test failed:{}", timed.failures());
    }
    Ok(timed)
}

/// Returns groups of parts; the parts of a group run in parallel. Library tests compute while those of
/// programs often wait; whole runs are separate.
fn parts(checkout: &Checkout, which: Which) -> Result<Vec<Vec<Part>>> {
    Ok(match which {
        Which::Units => vec![vec![Part::new(["--lib", "--bins"])]],
        Which::Night => vec![vec![Part::of_runs(&["--ignored"])]],
        Which::All => {
            let programs = Part::new(programs_with_tests(checkout)?);
            vec![vec![Part::new(["--lib"]), programs], vec![Part::of_runs(&[])]]
        }
    })
}

/// Returns cargo's options for all programs with tests, except libraries and whole runs.
fn programs_with_tests(checkout: &Checkout) -> Result<BTreeSet<String>> {
    let output =
        checkout.cargo().args(["metadata", "--no-deps", "--locked", "--format-version", "1"]).output();
    let output = output.context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("read what cargo metadata prints")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let targets = list(&metadata["packages"]).into_iter().flat_map(move |package| list(&package["targets"]));
    let option = |target: Value| {
        let (name, kind) = (target["name"].as_str()?, target["kind"][0].as_str()?);
        let has_tests = target["test"] == true && matches!(kind, "bin" | "test") && name != RUNS;
        has_tests.then(|| format!("--{kind}={name}"))
    };
    Ok(targets.filter_map(option).collect())
}

fn run_part(checkout: &Checkout, part: Part, notices: &Path) -> Result<Timed> {
    let mut command = checkout.cargo();
    command.args(["test", "--config", RUNNER, "--locked", "--features", FEATURES, "--no-fail-fast"]);
    command.arg("--workspace").args(part.targets);
    let threads = part.threads.to_string();
    command.args(["--", "-Z", "unstable-options", "--report-time", "--test-threads", &threads]);
    command.args(part.selection);
    // This variable has priority over the option above.
    command.env_remove("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER").env(NOTICES, notices);
    // One pipe for both streams: cargo announces on one the program whose tests print on the other.
    let (reader, writer) = pipe().context("make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("share a pipe")?)
        .stderr(writer)
        .spawn()
        .context("start cargo test")?;
    // The command holds the writing end until its streams are replaced; without that, reading would never
    // end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut timed = Timed::default();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("read what the tests print")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        timed.read(&line);
    }
    let status = child.wait().context("wait for cargo test")?;
    if !status.success() {
        timed.fail(format!("cargo test: {status}"));
    }
    Ok(timed)
}
