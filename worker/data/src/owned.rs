//! Temporary files of this process, removed when it ends.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::DataError;

/// All such files of this process; `None`: it is about to end.
static OWNED: Mutex<Option<BTreeSet<PathBuf>>> = Mutex::new(Some(BTreeSet::new()));

/// A file that is removed on drop.
#[derive(Debug)]
pub(super) struct Owned {
    path: PathBuf,
}

impl Owned {
    /// Takes ownership of an existing file.
    pub(super) fn new(path: &Path) -> Result<Self, DataError> {
        match &mut *all() {
            Some(owned) => {
                owned.insert(path.to_owned());
                Ok(Self { path: path.to_owned() })
            }
            None => {
                // This process has just created it.
                let _ = std::fs::remove_file(path);
                Err(DataError::Stopped)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames it and keeps it.
    pub(super) fn rename(self, to: &Path) -> io::Result<()> {
        let mut all = all();
        // It was removed, and another process may own the file of this name.
        let Some(owned) = &mut *all else { return Err(io::Error::other("the process is about to end")) };
        std::fs::rename(&self.path, to)?;
        owned.remove(&self.path);
        Ok(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // After a rename or an abandon, the name may belong to another process's file.
        if let Some(owned) = &mut *all()
            && owned.remove(&self.path)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes unfinished files of running threads before the process exits without joining them. Nothing is prepared after this.
pub fn abandon() {
    for path in all().take().unwrap_or_default() {
        let _ = std::fs::remove_file(path);
    }
}

fn all() -> MutexGuard<'static, Option<BTreeSet<PathBuf>>> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}
