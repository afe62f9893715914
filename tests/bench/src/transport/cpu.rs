//! CPU time of the transport, without the emulator's.

use std::fs;

use anyhow::{Context, Result};

/// Unit of Linux's counters (USER_HZ is 100 on each platform that Rust supports).
const TICKS_PER_S: f64 = 100.0;
/// The emulator's thread.
const RELAYS: &str = "(wan-relays)";

/// Returns the CPU seconds of this process's threads, without the emulator's.
pub fn seconds() -> Result<f64> {
    let mut ticks = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may end between listing and reading.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        if !stat.contains(RELAYS) {
            ticks += user_and_system(&stat).context("read a thread's CPU time")?;
        }
    }
    Ok(ticks as f64 / TICKS_PER_S)
}

/// Fields 14 and 15 of proc_pid_stat(5), counted after the name in parentheses.
fn user_and_system(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}
