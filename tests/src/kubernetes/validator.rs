//! Kubernetes' own schemas, through the Python package kubernetes-validate.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::pip::Package;

/// Contains the schemas of Kubernetes 1.25 to 1.37.
const PACKAGE: Package = Package { name: "kubernetes-validate", version: "1.37.0" };

/// An installed kubernetes-validate.
#[derive(Clone, Debug)]
pub struct Validator {
    python: PathBuf,
}

impl Validator {
    /// Returns `None`, with a notice, if it is not available.
    #[must_use]
    pub fn for_a_test() -> Option<Self> {
        PACKAGE.for_a_test().map(|folder| Self { python: folder.join("bin/python3") })
    }

    /// Validates objects strictly (unknown fields are errors) against the schemas of a Kubernetes release.
    ///
    /// # Errors
    /// The first fault found, or an unknown kind or release.
    pub fn validate(&self, objects: &[Value], kubernetes: &str) -> Result<()> {
        let mut command = Command::new(&self.python);
        command.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", kubernetes, "-"]);
        let output = run_with_input(&mut command, &yaml_stream(objects))?;
        let report = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
        // Unknown kinds only cause warnings, and an unknown release is replaced by an older one.
        let verdict = format!("against version {kubernetes}");
        let passed =
            report.lines().filter(|line| line.starts_with("INFO") && line.ends_with(&verdict)).count();
        ensure!(passed == objects.len(), "{passed} of {} objects passed:\n{report}", objects.len());
        Ok(())
    }
}

/// JSON is YAML, and a line of dashes separates documents.
fn yaml_stream(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

fn run_with_input(command: &mut Command, input: &str) -> Result<Output> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.context("start kubernetes-validate")?;
    // It reads all of its input before it writes, so neither side blocks the other. The pipe closes here.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().context("wait for kubernetes-validate")?;
    match written {
        // It may have died before reading; its own output is more informative.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("write the manifests"),
        _ => Ok(output),
    }
}
