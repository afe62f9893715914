//! Notices of tests about parts skipped on this machine, repeated at the end because they scroll by earlier.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The variable that gives tests the path of the file. `longhaul_tests::tools` writes into it.
pub const NOTICES: &str = "LONGHAUL_NOTICES";

/// A file to which tests append lines, removed on drop.
pub struct Notices(PathBuf);

impl Notices {
    /// # Errors
    /// Returns an error if the temporary folder is not writable.
    pub fn begin() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("longhaul-notices-{}", std::process::id()));
        fs::write(&path, "").with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Prints each notice once.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn show(&self) -> Result<()> {
        let text = fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        let lines: BTreeSet<&str> = text.lines().collect();
        lines.iter().for_each(|line| println!("{line}"));
        Ok(())
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // It is a temporary file.
        let _ = fs::remove_file(&self.0);
    }
}
