//! Memory of a process, as counted by Linux.

use anyhow::{Context, Result};

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Present.
    pub resident: u64,
    /// Peak.
    pub peak: u64,
    /// As counted by its limit on data (`RLIMIT_DATA`): private writable mappings, used or not.
    pub data: u64,
}

/// Returns the memory of a process of this machine.
///
/// # Errors
/// The process does not exist.
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
