//! One step of the verification: announced, timed, and silent unless it fails.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, pipe};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::clock;

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It did not pass.
    Failed,
    /// It could not run here, and printed a notice.
    Skipped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Passed => "ok",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        })
    }
}

/// A step's row in the closing table.
pub struct Report {
    /// The step's name.
    pub name: &'static str,
    /// Its outcome.
    pub outcome: Outcome,
    /// Its duration.
    pub duration: Duration,
}

/// An announced step, being timed.
pub struct Step {
    name: &'static str,
    started: Instant,
}

impl Step {
    /// Announces the step.
    pub fn new(name: &'static str) -> Self {
        println!("==> {name}");
        Self { name, started: clock::now() }
    }

    /// Runs a command and shows its output only if it fails.
    pub fn captured(self, command: &mut Command) -> Report {
        self.checked(|| run_captured(command))
    }

    /// Runs a command and streams its output.
    pub fn streamed(self, command: &mut Command) -> Report {
        self.checked(|| {
            let status =
                command.stdin(Stdio::null()).status().with_context(|| format!("start {}", typed(command)))?;
            if !status.success() {
                bail!("{}: {status}", typed(command));
            }
            Ok(())
        })
    }

    /// Runs an internal check and prints its error.
    pub fn checked(self, check: impl FnOnce() -> Result<()>) -> Report {
        let outcome = match check() {
            Ok(()) => Outcome::Passed,
            Err(error) => {
                println!("{error:#}");
                Outcome::Failed
            }
        };
        self.report(outcome)
    }

    /// Skips the step with a notice.
    pub fn skipped(self, notice: &str) -> Report {
        println!("notice: {notice}");
        self.report(Outcome::Skipped)
    }

    fn report(self, outcome: Outcome) -> Report {
        let duration = clock::now() - self.started;
        println!("    {} {outcome} in {:.1} s", self.name, duration.as_secs_f64());
        Report { name: self.name, outcome, duration }
    }
}

/// Runs a command; on failure the error contains its output.
fn run_captured(command: &mut Command) -> Result<()> {
    // One pipe for both streams keeps their lines in order.
    let (mut reader, writer) = pipe().context("make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("share a pipe")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("start {}", typed(command)))?;
    // The command holds the writing end until its streams are replaced; without that, reading would never
    // end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    let read = reader.read_to_end(&mut output);
    let status = child.wait().with_context(|| format!("wait for {}", typed(command)))?;
    read.context("read a command's output")?;
    if !status.success() {
        bail!("{}\n{}: {status}", String::from_utf8_lossy(&output).trim_end(), typed(command));
    }
    Ok(())
}

/// Formats the command for a shell, to repeat a step by hand.
fn typed(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> =
        std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_reported_with_both_streams_in_order() {
        let error =
            run_captured(Command::new("sh").args(["-c", "echo one; echo two >&2; echo three; exit 3"]))
                .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("one\ntwo\nthree\n"), "{text}");
        assert!(text.contains("sh -c") && text.ends_with("exit status: 3"), "{text}");
    }

    #[test]
    fn a_command_that_cannot_start_fails_its_step() {
        let report = Step::new("nonsense").captured(&mut Command::new("/nonexistent/tool"));
        assert_eq!(report.outcome, Outcome::Failed);
        let report = Step::new("sense").captured(&mut Command::new("true"));
        assert_eq!(report.outcome, Outcome::Passed);
    }
}
