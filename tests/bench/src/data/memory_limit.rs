//! A cgroup of this process alone, in which files that it reads count as its memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::kit::progress;

/// A cgroup below the process's present one. On drop the process returns there and the cgroup is removed.
/// Memory used before still counts there.
#[derive(Debug)]
pub struct MemoryLimit {
    before: PathBuf,
    group: PathBuf,
}

impl MemoryLimit {
    /// Limits the memory that this process uses from now on.
    ///
    /// # Errors
    /// cgroups are missing or may not be changed.
    pub fn begin(bytes: u64) -> Result<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        // Version 1 has a separate hierarchy for memory, version 2 one for all.
        let of = |controller: &str| {
            groups
                .lines()
                .find_map(|line| line.split_once(':')?.1.strip_prefix(controller)?.strip_prefix(":/"))
        };
        let (before, file) = match (of("memory"), of("")) {
            (Some(path), _) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            (None, Some(path)) => (Path::new("/sys/fs/cgroup").join(path), "memory.max"),
            (None, None) => anyhow::bail!("this process is in no control group"),
        };
        let group = before.join(format!("longhaul-bench-{}", std::process::id()));
        std::fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        let limit = Self { before, group };
        std::fs::write(limit.group.join(file), bytes.to_string()).context("set the limit")?;
        enter(&limit.group)?;
        Ok(limit)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(error) = enter(&self.before) {
            progress(format!("{error:#}"));
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

fn enter(group: &Path) -> Result<()> {
    let process = std::process::id().to_string();
    std::fs::write(group.join("cgroup.procs"), process).with_context(|| format!("enter {}", group.display()))
}
