//! What tests say that they do not do on this machine: it scrolls by while they run, so it is shown once more at the end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The variable with which tests are told of the file. `longhaul_tests::tools` writes into it.
pub const NOTICES: &str = "LONGHAUL_NOTICES";

/// A file that tests add lines to. Dropping this removes it.
pub struct Notices(PathBuf);

impl Notices {
    /// # Errors
    /// The system's folder for temporary files takes none.
    pub fn begin() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("longhaul-notices-{}", std::process::id()));
        fs::write(&path, "").with_context(|| format!("write {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Prints each notice once.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn show(&self) -> Result<()> {
        let text = fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        let lines: BTreeSet<&str> = text.lines().collect();
        lines.iter().for_each(|line| println!("{line}"));
        Ok(())
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // It lies among temporary files.
        let _ = fs::remove_file(&self.0);
    }
}
