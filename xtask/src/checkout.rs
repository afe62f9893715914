//! The checkout of this run of xtask.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The root folder of the working tree.
pub struct Checkout {
    root: PathBuf,
    /// Cargo's target folder, if it is not the user's choice.
    target: Option<PathBuf>,
}

/// The parts of `cargo metadata` used here.
#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
}

impl Checkout {
    /// Returns the working tree of this `cargo xtask`.
    ///
    /// Cargo names it in the environment; a binary started by hand uses the tree it was built from. The
    /// environment has priority because checkouts with a common target folder also share the binary's path.
    pub fn of_this_run() -> Self {
        let manifest_dir =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let manifest_dir = PathBuf::from(manifest_dir);
        let root = manifest_dir.parent().map_or_else(|| manifest_dir.clone(), Path::to_path_buf);
        Self { root, target: None }
    }

    /// Creates a copy with this root folder. It is built within it, so its binaries never replace the user's.
    pub fn copy(root: PathBuf) -> Self {
        let target = Some(root.join("target"));
        Self { root, target }
    }

    /// The root folder, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The git-ignored link that `.cargo/config.toml` names as `LIBTORCH`.
    pub fn libtorch_link(&self) -> PathBuf {
        self.root.join(".libtorch")
    }

    /// Returns the user's `LIBTORCH`, if any.
    ///
    /// Cargo passes its own default from `.cargo/config.toml` to the programs of `cargo run`, so that value
    /// is not the user's.
    pub fn own_libtorch(&self) -> Option<PathBuf> {
        let value = PathBuf::from(env::var_os("LIBTORCH")?);
        (value != self.libtorch_link()).then_some(value)
    }

    /// Creates a command for cargo at the root of this checkout, in the environment of a user's shell.
    ///
    /// Removes the variables that the outer `cargo run` added: cargo rebuilds a crate when a variable that
    /// its build script watches changes, and a build script that takes minutes watches `LIBTORCH`.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        if self.own_libtorch().is_none() {
            command.env_remove("LIBTORCH");
        }
        if let Some(target) = &self.target {
            command.env("CARGO_TARGET_DIR", target);
        }
        for (name, _) in env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
            {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Returns cargo's target folder for this checkout.
    pub fn target_directory(&self) -> Result<PathBuf> {
        let mut command = self.cargo();
        command.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]);
        let output = command.output().context("run cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).context("read what cargo metadata printed")?;
        Ok(metadata.target_directory)
    }
}
