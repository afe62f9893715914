//! Checkpoints on workers' disks.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::binary;

/// Returns a damaged checkpoint in a worker's folder, by `coordinator checkpoints verify`; `None`: all are
/// intact, or the folder is missing.
///
/// # Errors
/// The command fails.
pub fn damaged_checkpoint(folder: &Path) -> Result<Option<String>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut verify = Command::new(binary("coordinator")?);
    verify.args(["checkpoints", "verify", "--json", "--dir"]).arg(folder);
    let output = verify.output().context("start `coordinator checkpoints verify`")?;
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("verify checkpoints: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    Ok(listed.iter().find(|checkpoint| checkpoint["whole"] != true).map(Value::to_string))
}
