//! A process that loads a model, and computes a step when it is asked to: transformers' or our own.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cases::Work;
use crate::kit::checkout;

/// A process, which ends with this value.
pub(super) struct Side {
    process: Child,
    asked: ChildStdin,
    told: BufReader<ChildStdout>,
    /// Time and memory of loading.
    pub loaded: Loaded,
}

/// Time and memory of a process until it can compute.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Loaded {
    pub seconds: f64,
    pub peak_bytes: u64,
}

/// A step.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Step {
    pub seconds: f64,
    pub loss: f64,
    pub peak_bytes: u64,
}

impl Side {
    /// Starts our own, and waits until it has loaded the model in `folder`.
    pub fn ours(folder: &Path, work: Work) -> Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command.arg("models-own");
        Self::start(command, folder, work)
    }

    /// Starts transformers, and waits.
    pub fn transformers(python: &Path, folder: &Path, work: Work) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(checkout::file("tests/bench/python/models.py")).env("HF_HUB_OFFLINE", "1");
        Self::start(command, folder, work)
    }

    fn start(mut command: Command, folder: &Path, work: Work) -> Result<Self> {
        command.arg(folder).args(work.arguments()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {command:?}"))?;
        let (asked, told) = (process.stdin.take(), process.stdout.take());
        let (asked, told) = asked.zip(told).context("reach a process")?;
        let loaded = Loaded { seconds: 0.0, peak_bytes: 0 };
        let mut side = Self { process, asked, told: BufReader::new(told), loaded };
        side.loaded = side.read()?;
        Ok(side)
    }

    /// Computes a step.
    pub fn step(&mut self) -> Result<Step> {
        self.ask("step")
    }

    /// Writes the logits of the first sequence [T, V] into a file, in f32.
    pub fn logits(&mut self, into: &Path) -> Result<Vec<f32>> {
        let _: Step = self.ask(&format!("logits {}", into.display()))?;
        let bytes = std::fs::read(into).context("read logits")?;
        Ok(bytes
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    fn ask<T: DeserializeOwned>(&mut self, question: &str) -> Result<T> {
        writeln!(self.asked, "{question}").context("ask a process")?;
        self.read()
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.told.read_line(&mut line).context("read what a process prints")?;
        serde_json::from_str(&line).context("a process failed: its error is above")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
