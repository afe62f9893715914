//! The tests themselves: built in one go with one set of features, run by cargo, and timed.

use std::io::{BufRead as _, BufReader, pipe};
use std::num::NonZero;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;
use crate::verify::notices::NOTICES;
use crate::verify::timed::Timed;

/// For collectors of OpenTelemetry: on in every step that compiles, so that nothing is compiled twice.
pub const OTEL: &str = "longhaul-coordinator/otel,longhaul-worker/otel";
/// Has cargo start each test program with the variable that makes the harness of stable Rust time its tests. The compiler must not
/// see it: build scripts watch it, and half of all crates would be compiled anew.
const RUNNER: (&str, &str) = ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "env RUSTC_BOOTSTRAP=1");

/// Tests of a program that go at once at least: many wait for a clock or a link, and cores are idle meanwhile.
const THREADS_MIN: usize = 4;

/// Which tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those of libraries and programs.
    Units,
    /// All that CI runs.
    All,
    /// Whole runs of real processes that take too long for CI.
    Night,
}

impl Which {
    /// Of cargo: what is built. Examples are checked by clippy and never linked; documentation has no code that runs. `--tests` means all targets with tests, those of libraries and
    /// programs as well, and builds the programs that the others start; `--bins` would link a harness for programs that have no test.
    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::Units => &["--workspace", "--lib", "--bins"],
            Self::All => &["--workspace", "--tests"],
            Self::Night => &["--workspace", "--test", "run"],
        }
    }

    /// Of the harness: what is run.
    fn selection(self) -> &'static [&'static str] {
        if self == Self::Night { &["--ignored"] } else { &[] }
    }
}

/// Compiles and links all that [`run`] starts.
pub fn build(checkout: &Checkout, which: Which) -> Command {
    let mut command = checkout.cargo();
    command.args(["test", "--locked", "--features", OTEL, "--no-run"]).args(which.targets());
    command
}

/// Runs the tests, shows what they print as it comes, and returns how long each took.
///
/// # Errors
/// One failed.
pub fn run(checkout: &Checkout, which: Which, notices: &Path) -> Result<Timed> {
    let mut command = checkout.cargo();
    command.args(["test", "--locked", "--features", OTEL, "--no-fail-fast"]).args(which.targets());
    let threads = thread::available_parallelism().map_or(1, NonZero::get).max(THREADS_MIN);
    command.args(["--", "-Z", "unstable-options", "--report-time", "--test-threads", &threads.to_string()]);
    command.args(which.selection());
    command.env(RUNNER.0, RUNNER.1).env(NOTICES, notices);
    // One pipe for both streams: cargo says on one which program's tests follow on the other.
    let (reader, writer) = pipe().context("make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("share a pipe")?)
        .stderr(writer)
        .spawn()
        .context("start cargo test")?;
    // The command holds the pipe's writing end until it is told otherwise, and reading would not end.
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
        bail!("cargo test: {status}{}", timed.failures());
    }
    Ok(timed)
}
