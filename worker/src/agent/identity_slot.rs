//! The place of a worker's identity, which survives restarts.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use longhaul_proto::identity::Fingerprint;

/// Limit on workers of one run on one machine: more than any machine has devices.
const SLOTS_MAX: usize = 256;

/// The folder of one worker process of a run. Locked until dropped, so that two processes on a machine never share an identity.
#[derive(Debug)]
pub struct IdentitySlot {
    folder: PathBuf,
    _lock: File,
}

impl IdentitySlot {
    /// Takes the first free slot at this site for the run with this authority.
    ///
    /// # Errors
    /// The cache folder cannot be written, or all slots are taken.
    pub fn take(cache_dir: &Path, authority: &Fingerprint, site: &str) -> Result<Self> {
        let site = blake3::hash(site.as_bytes()).to_hex();
        let run = cache_dir.join("workers").join(format!("{authority}-{}", &site[..8]));
        for slot in 0..SLOTS_MAX {
            let folder = run.join(slot.to_string());
            std::fs::create_dir_all(&folder).with_context(|| {
                format!("make the folder {}; --cache-dir names another", folder.display())
            })?;
            let path = folder.join("lock");
            let lock = File::options().create(true).truncate(false).write(true).open(&path);
            let lock = lock.with_context(|| format!("open {}", path.display()))?;
            match lock.try_lock() {
                Ok(()) => return Ok(Self { folder, _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        bail!("{SLOTS_MAX} workers of this run use {} already", run.display())
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_on_a_machine_get_two_slots_and_a_restarted_one_gets_its_own_back() {
        let cache = tempfile::tempdir().unwrap();
        let authority = Fingerprint([7; 32]);
        let first = IdentitySlot::take(cache.path(), &authority, "a").unwrap();
        let second = IdentitySlot::take(cache.path(), &authority, "a").unwrap();
        assert_ne!(first.folder(), second.folder());
        let folder = first.folder().to_owned();
        drop(first);
        assert_eq!(IdentitySlot::take(cache.path(), &authority, "a").unwrap().folder(), folder);
    }

    #[test]
    fn an_unwritable_cache_folder_is_named_with_the_flag_that_changes_it() {
        let cache = tempfile::NamedTempFile::new().unwrap();
        let error = IdentitySlot::take(cache.path(), &Fingerprint([7; 32]), "a").unwrap_err();
        assert!(error.to_string().contains("--cache-dir"), "{error}");
    }
}
