//! CPU time of processes.

use std::fmt::Display;
use std::fs;

use anyhow::{Context, Result};

/// Returns the CPU seconds of a process's threads, but for those of one name. `process`: its number, or `self`.
///
/// # Errors
/// There is no such process, or the system keeps no account of threads.
pub fn seconds(process: impl Display, without: Option<&str>) -> Result<f64> {
    let path = format!("/proc/{process}/task");
    let mut sum_ns = 0.0;
    for thread in fs::read_dir(&path).with_context(|| format!("read {path}"))? {
        let thread = thread?.path();
        // A thread may end between listing and reading.
        let (Ok(name), Ok(text)) =
            (fs::read_to_string(thread.join("comm")), fs::read_to_string(thread.join("schedstat")))
        else {
            continue;
        };
        if without == Some(name.trim_end()) {
            continue;
        }
        let ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        sum_ns += ns.with_context(|| format!("the times of {} do not begin with one", thread.display()))?;
    }
    Ok(sum_ns / 1e9)
}
