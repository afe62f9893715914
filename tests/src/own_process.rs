//! Tests that need their own process: for its environment or memory, or because it is stopped and killed.

#![allow(clippy::unwrap_used, reason = "for tests alone")]

use std::process::Command;

/// Returns a command that runs one test of this binary, by its full name. The test is otherwise ignored.
///
/// # Panics
/// The path of this binary is unknown.
#[must_use]
pub fn of_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// Runs such a test to its end.
///
/// # Panics
/// It fails, or does not exist.
pub fn run(mut test: Command) {
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && said.contains("1 passed");
    assert!(is_passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
}
