//! The checkout that this run of xtask serves.

use std::env;
use std::path::{Path, PathBuf};

/// The root folder of the working tree.
pub struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// The working tree whose `cargo xtask` this is.
    ///
    /// Cargo names it in the environment; a binary started by hand serves the tree it was built from. The
    /// environment goes first because checkouts that share a target folder also share the binary's path.
    pub fn of_this_run() -> Self {
        let manifest_dir =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let manifest_dir = PathBuf::from(manifest_dir);
        let root = manifest_dir.parent().map_or_else(|| manifest_dir.clone(), Path::to_path_buf);
        Self { root }
    }

    /// The git-ignored link that `.cargo/config.toml` names as `LIBTORCH`.
    pub fn libtorch_link(&self) -> PathBuf {
        self.root.join(".libtorch")
    }
}
