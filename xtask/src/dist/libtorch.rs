//! The libtorch packed with the worker.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::checkout::Checkout;
use crate::setup::pins::{LICENCES_DIR, Variant, Wheel};

/// A libtorch that a worker is linked to.
pub struct Libtorch {
    folder: PathBuf,
    version: String,
    cuda: bool,
    /// Whether it was assembled from the pinned wheels, rather than the user's own.
    pinned: bool,
}

impl Libtorch {
    /// Returns the libtorch of a checkout.
    ///
    /// # Errors
    /// Returns an error if its version cannot be read.
    pub fn of(checkout: &Checkout) -> Result<Self> {
        let own = checkout.own_libtorch();
        let pinned = own.is_none();
        let folder = own.unwrap_or_else(|| checkout.libtorch_link());
        let folder =
            folder.canonicalize().with_context(|| format!("find libtorch at {}", folder.display()))?;
        let version = fs::read_to_string(folder.join("build-version"))
            .with_context(|| format!("read the version of libtorch in {}", folder.display()))?;
        let cuda = folder.join("lib/libtorch_cuda.so").is_file();
        Ok(Self { version: version.trim().to_owned(), cuda, pinned, folder })
    }

    /// The folder of its libraries.
    pub fn lib(&self) -> PathBuf {
        self.folder.join("lib")
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns its suffix in the tarball's name: empty on CPUs.
    pub fn suffix(&self) -> &'static str {
        if self.cuda { "-cuda" } else { "" }
    }

    /// Returns its wheels; empty for the user's own.
    pub fn wheels(&self) -> &'static [Wheel] {
        match (self.pinned, self.cuda) {
            (false, _) => &[],
            (true, false) => Variant::Cpu.wheels(),
            (true, true) => Variant::Cuda.wheels(),
        }
    }

    /// Returns the folder with its licences.
    ///
    /// # Errors
    /// Returns an error if there are none; distribution requires them.
    pub fn licences(&self) -> Result<PathBuf> {
        let licences = self.folder.parent().unwrap_or_else(|| Path::new("/")).join(LICENCES_DIR);
        ensure!(
            licences.is_dir(),
            "libtorch's licences are not in {}, and it may not be given out without them: {}",
            licences.display(),
            match self.pinned {
                true =>
                    "it was assembled before they were kept; remove the folder that this is in, and cargo xtask setup",
                false => "put there what your libtorch came with",
            }
        );
        Ok(licences)
    }
}
