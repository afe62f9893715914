//! The binaries of the workspace that a demo runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;
use crate::demo::Profile;

/// Where the built binaries are.
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Builds coordinator, worker and emulator: chosen from the whole workspace, because cargo would choose other features
    /// of shared dependencies for some packages alone, and compile them again.
    pub fn build(checkout: &Checkout, profile: Profile) -> Result<Self> {
        let (name, folder) = match profile {
            Profile::Release => ("release", "release"),
            Profile::Dev => ("dev", "debug"),
        };
        let status = checkout
            .cargo()
            .args(["build", "--workspace", "--locked", "--profile", name])
            .args(["--bin", "coordinator", "--bin", "worker", "--bin", "wan-emulator"])
            .status()
            .context("start cargo build")?;
        if !status.success() {
            bail!("the binaries do not build");
        }
        Ok(Self { dir: checkout.target_directory()?.join(folder) })
    }

    /// A command that runs one of them.
    pub fn command(&self, name: &str) -> Command {
        Command::new(self.dir.join(name))
    }

    /// Lets the model in a checkpoint continue a text.
    pub fn sample(&self, checkpoint: &Path, prompt: &str) -> Result<String> {
        let mut command = self.command("worker");
        command.arg("sample").arg("--checkpoint").arg(checkpoint).args(["--prompt", prompt]);
        // A small model is clearer when it takes fewer risks.
        command.args(["--temperature", "0.7"]);
        // A position of it is less work than the meeting of two threads.
        command.args(["--threads", "1"]);
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
        if !output.status.success() {
            bail!(
                "sample from {}: {}",
                checkpoint.display(),
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
