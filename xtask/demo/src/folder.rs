//! The demo's folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Marks a folder as a demo's own, which the next demo may empty.
const MARKER: &str = ".longhaul-demo";

/// Removed after a successful demo. The state directory stays: `coordinator view` shows the run from it.
const TRANSIENT: [&str; 2] = ["caches", "join.txt"];

/// An absolute folder with the layout of a demo.
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Creates the folder, or empties that of an earlier demo.
    ///
    /// # Errors
    /// The folder contains files that are not a demo's.
    pub fn create(dir: &Path) -> Result<Self> {
        let root = std::path::absolute(dir).with_context(|| format!("find {}", dir.display()))?;
        if root.join(MARKER).is_file() {
            fs::remove_dir_all(&root).with_context(|| format!("empty {}", root.display()))?;
        } else if fs::read_dir(&root).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} holds files that are not a demo's; name another folder with --dir", root.display());
        }
        let folder = Self { root };
        for dir in [folder.logs(), folder.caches(), folder.root.join("workers")] {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let marker = folder.root.join(MARKER);
        fs::write(&marker, "").with_context(|| format!("create {}", marker.display()))?;
        Ok(folder)
    }

    /// Returns the folder, in which the coordinator runs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the processes' logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Returns the path of the run's configuration.
    pub fn run_toml(&self) -> PathBuf {
        self.root.join("run.toml")
    }

    /// Returns the coordinator's state directory.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Returns the file to which the coordinator writes the join line.
    pub fn join_file(&self) -> PathBuf {
        self.root.join("join.txt")
    }

    /// Returns the cache folder of one worker, which represents a separate machine.
    pub fn cache(&self, worker: &str) -> PathBuf {
        self.caches().join(worker)
    }

    fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// Creates the folder in which one worker runs and keeps its checkpoints.
    pub fn create_worker_dir(&self, worker: &str) -> Result<PathBuf> {
        let dir = self.root.join("workers").join(worker);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// Returns a folder for the checkpoints of all workers, like a shared disk.
    pub fn shared_checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Removes unneeded files after a success. State, checkpoints and logs stay.
    pub fn remove_caches(&self) -> Result<()> {
        for name in TRANSIENT {
            let path = self.root.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_empties_its_own_folder_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("demo");
        let first = Folder::create(&root).unwrap();
        fs::write(first.run_toml(), "old").unwrap();
        let second = Folder::create(&root).unwrap();
        assert!(!second.run_toml().exists());
        fs::remove_file(root.join(MARKER)).unwrap();
        assert!(Folder::create(&root).is_err(), "a folder without the marker belongs to somebody else");
    }

    #[test]
    fn after_a_success_state_checkpoints_and_logs_stay() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(&dir.path().join("demo")).unwrap();
        let checkpoint = folder.create_worker_dir("a-0").unwrap().join("checkpoints");
        fs::create_dir(&checkpoint).unwrap();
        fs::create_dir(folder.state()).unwrap();
        folder.remove_caches().unwrap();
        assert!(checkpoint.is_dir() && folder.logs().is_dir() && folder.state().is_dir());
        assert!(!folder.caches().exists());
    }
}
