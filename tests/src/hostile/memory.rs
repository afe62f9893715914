//! What a process holds, as Linux counts it.

use anyhow::{Context, Result};

/// In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// The most that it ever was.
    pub peak: u64,
    /// What its limit on data (`RLIMIT_DATA`) counts: what it has mapped for itself and may write, used or not.
    pub data: u64,
}

/// Of a process of this machine.
///
/// # Errors
/// There is no such process.
pub fn memory_of(process: u32) -> Result<Memory> {
    let path = format!("/proc/{process}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let field = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("a line is missing")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("read a number")?;
        Ok(kib << 10)
    };
    Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")?, data: field("VmData:")? })
}
