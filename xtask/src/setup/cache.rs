//! The user's cache folder, shared by all checkouts.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::pins::{LIBTORCH_VERSION, Variant};

/// `$XDG_CACHE_HOME/longhaul`, or `~/.cache/longhaul`.
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the cache folder, and creates it if it is missing.
    pub fn open() -> Result<Self> {
        let root = location(
            env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            env::var_os("HOME").map(PathBuf::from),
        )?;
        Self::at(root)
    }

    fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root).with_context(|| format!("create the cache folder {}", root.display()))?;
        Ok(Self { root })
    }

    /// Returns the path of a completely assembled libtorch.
    pub fn libtorch(&self, variant: Variant) -> PathBuf {
        self.root.join(format!("libtorch-{LIBTORCH_VERSION}-{variant}"))
    }

    /// Returns the folder of wheels between download and assembly.
    pub fn wheels(&self) -> PathBuf {
        self.root.join("wheels")
    }

    /// Removes the files that only the assembly needed.
    pub fn remove_wheels(&self) -> Result<()> {
        remove_dir_if_present(&self.wheels())
    }

    /// Waits until no other setup of this user is running, and excludes others during the lifetime of the
    /// result.
    ///
    /// The operating system releases the lock when the process dies.
    pub fn lock(&self) -> Result<File> {
        let path = self.root.join("setup.lock");
        let file = File::create(&path).with_context(|| format!("open the lock file {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => eprintln!("another setup is running; waiting for it to finish"),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| {
                    format!("lock {}; set XDG_CACHE_HOME to a folder on a local disk", path.display())
                });
            }
        }
        file.lock().with_context(|| format!("wait for the lock {}", path.display()))?;
        Ok(file)
    }
}

/// Removes a folder with its contents, if it exists.
pub fn remove_dir_if_present(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// The XDG base directory specification requires relative paths to be ignored.
fn location(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    xdg_cache_home
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| home.join(".cache")))
        .map(|caches| caches.join("longhaul"))
        .context("find a cache folder: neither XDG_CACHE_HOME nor HOME is set")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_follows_the_xdg_specification() {
        let home = || Some(PathBuf::from("/home/ada"));
        assert_eq!(location(Some("/fast/cache".into()), home()).unwrap(), Path::new("/fast/cache/longhaul"));
        assert_eq!(
            location(Some("relative".into()), home()).unwrap(),
            Path::new("/home/ada/.cache/longhaul")
        );
        assert_eq!(location(None, home()).unwrap(), Path::new("/home/ada/.cache/longhaul"));
        assert!(location(None, None).is_err());
    }

    #[test]
    fn a_second_setup_cannot_take_the_lock_until_the_first_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().to_path_buf()).unwrap();
        let first = cache.lock().unwrap();
        let rival = File::open(dir.path().join("setup.lock")).unwrap();
        assert!(matches!(rival.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        assert!(rival.try_lock().is_ok());
    }
}
