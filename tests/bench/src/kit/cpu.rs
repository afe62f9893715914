//! CPU time of processes.

use std::fmt::Display;
use std::fs;

use anyhow::{Context, Result};

/// Unit of Linux's counters (USER_HZ is 100 on each platform that Rust supports).
const TICKS_PER_S: f64 = 100.0;

/// Returns the CPU seconds of all threads of a process, also of those that have ended, but for living ones of one name. `process`: its number, or `self`.
///
/// # Errors
/// There is no such process, or the system keeps no account of its time.
pub fn seconds(process: impl Display, without: Option<&str>) -> Result<f64> {
    let folder = format!("/proc/{process}");
    let all = ticks(&format!("{folder}/stat"))?.1;
    let mut left_out = 0;
    for thread in
        fs::read_dir(format!("{folder}/task")).with_context(|| format!("list the threads of {process}"))?
    {
        // A thread may end between listing and reading.
        let Ok((name, ticks)) = ticks(&thread?.path().join("stat").display().to_string()) else { continue };
        left_out += if without == Some(name.as_str()) { ticks } else { 0 };
    }
    Ok(all.saturating_sub(left_out) as f64 / TICKS_PER_S)
}

/// Returns the name, and fields 14 and 15 of proc_pid_stat(5), counted after the name in parentheses.
fn ticks(path: &str) -> Result<(String, u64)> {
    let stat = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let parsed = || {
        let (before, fields) = stat.rsplit_once(')')?;
        let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
        let name = before.split_once('(')?.1.to_owned();
        Some((name, times.next()?.ok()? + times.next()?.ok()?))
    };
    parsed().with_context(|| format!("{path} has no times"))
}
