//! The reference's process, which computes a step when it is asked to.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use longhaul_common::config::Precision;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::cases::{Case, LENGTH, SEQUENCES};
use crate::kit::checkout;

/// A process of `models.py`, which ends with this value.
pub(super) struct Reference {
    process: Child,
    asked: ChildStdin,
    told: BufReader<ChildStdout>,
}

/// A step of the reference.
#[derive(Deserialize)]
pub(super) struct Step {
    pub seconds: f64,
    pub loss: f64,
}

#[derive(Deserialize)]
struct Loaded {
    #[serde(rename = "load_s")]
    _seconds: f64,
}

impl Reference {
    /// Starts it and waits until it has loaded the model in `folder`.
    pub fn start(python: &Path, folder: &Path, case: &Case) -> Result<Self> {
        let precision = if case.precision == Precision::F32 { "f32" } else { "bf16" };
        let mut process = Command::new(python)
            .arg(checkout::file("tests/bench/python/models.py"))
            .arg(folder)
            .args([SEQUENCES.to_string(), LENGTH.to_string(), precision.to_owned()])
            .arg(case.rank.unwrap_or(0).to_string())
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", python.display()))?;
        let (asked, told) = (process.stdin.take(), process.stdout.take());
        let (asked, told) = asked.zip(told).context("reach the reference's process")?;
        let mut reference = Self { process, asked, told: BufReader::new(told) };
        reference.read::<Loaded>()?;
        Ok(reference)
    }

    /// Computes a step.
    pub fn step(&mut self) -> Result<Step> {
        self.asked.write_all(b"step\n").context("ask the reference for a step")?;
        self.read()
    }

    fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.told.read_line(&mut line).context("read what the reference prints")?;
        serde_json::from_str(&line).context("the reference failed: its error is above")
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
