//! Python scripts for comparison.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::checkout;

/// Runs a script of `tests/bench/python`; returns its output. Forwards its errors.
pub fn run(
    python: &Path,
    script: &str,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<String> {
    let path = checkout::file(&format!("tests/bench/python/{script}"));
    let mut command = Command::new(python);
    command.arg(&path).args(arguments).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("start {}", python.display()))?;
    ensure!(output.status.success(), "{} failed: {}", path.display(), output.status);
    String::from_utf8(output.stdout).with_context(|| format!("read what {} printed", path.display()))
}
