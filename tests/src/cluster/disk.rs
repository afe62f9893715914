//! A nearly full disk in place of a folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

/// Space for a file or two of a few lines, and for no checkpoint.
const ROOM: &str = "size=64k";

/// A small file system mounted over a folder, which hides its content. Dropping it restores the folder. Needs
/// root; a killed harness leaves it behind, for `umount`.
#[derive(Debug)]
pub struct FullDisk {
    /// `None`: unmounted.
    over: Option<PathBuf>,
}

impl FullDisk {
    /// Mounts one over this folder.
    ///
    /// # Errors
    /// The error of `mount`.
    pub fn mount(folder: &Path) -> Result<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", ROOM, "tmpfs"]).arg(folder);
        expect(&mount.output().context("start mount")?)
            .with_context(|| format!("mount a small disk at {}", folder.display()))?;
        Ok(Self { over: Some(folder.to_owned()) })
    }

    /// Whether this user may mount, tested in a separate folder.
    ///
    /// # Errors
    /// That folder cannot be created.
    pub fn is_possible() -> Result<bool> {
        let folder = tempfile::tempdir()?;
        Ok(Self::mount(folder.path()).is_ok())
    }

    /// Restores the folder.
    ///
    /// # Errors
    /// The error of `umount`.
    pub fn unmount(mut self) -> Result<()> {
        self.give_back()
    }

    /// A worker may have a file open there: the folder is back at once, and the disk ends with the file.
    fn give_back(&mut self) -> Result<()> {
        let Some(folder) = self.over.take() else { return Ok(()) };
        expect(&Command::new("umount").arg("--lazy").arg(&folder).output().context("start umount")?)
            .with_context(|| format!("unmount the small disk at {}", folder.display()))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        // Users of the folder will notice a failure.
        let _ = self.give_back();
    }
}

fn expect(output: &Output) -> Result<()> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;
    use crate::tools::skipped;

    #[test]
    fn a_full_disk_takes_no_file_of_any_size_and_the_folder_is_back_when_it_goes() {
        if !FullDisk::is_possible().unwrap() {
            return skipped("this user may not mount; run it as root");
        }
        let folder = tempfile::tempdir().unwrap();
        let (before, large) = (folder.path().join("before"), folder.path().join("large"));
        fs::write(&before, "here").unwrap();
        for is_dropped in [false, true] {
            let disk = FullDisk::mount(folder.path()).unwrap();
            assert!(!before.exists());
            let error = fs::write(&large, vec![0; 1 << 20]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            let _open = fs::File::open(&large).unwrap();
            if is_dropped {
                drop(disk)
            } else {
                disk.unmount().unwrap()
            }
            assert_eq!(fs::read_to_string(&before).unwrap(), "here");
            assert!(!large.exists());
        }
    }
}
