//! Tests that want a process of their own: for its environment or its memory, or because it is stopped and killed.

#![allow(clippy::unwrap_used, reason = "for tests alone")]

use std::process::Command;

/// A command that runs one test of this binary, by its full name. The test is one that is ignored otherwise.
///
/// # Panics
/// The system does not say where this binary is.
#[must_use]
pub fn of_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// Runs such a test to its end.
///
/// # Panics
/// It fails, or there is none of this name.
pub fn run(mut test: Command) {
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && said.contains("1 passed");
    assert!(is_passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}
