//! The checkout that this run of xtask serves.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The root folder of the working tree.
pub struct Checkout {
    root: PathBuf,
    /// Where cargo builds it, if that is not for the user to say.
    target: Option<PathBuf>,
}

/// The part of `cargo metadata` that is read here.
#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
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
        Self { root, target: None }
    }

    /// A copy with this root folder, which is built within it: its binaries never take the place of the user's.
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

    /// The `LIBTORCH` that the user set, if any.
    ///
    /// Cargo hands its own default from `.cargo/config.toml` to whatever `cargo run` starts, so that value is
    /// not the user's.
    pub fn own_libtorch(&self) -> Option<PathBuf> {
        let value = PathBuf::from(env::var_os("LIBTORCH")?);
        (value != self.libtorch_link()).then_some(value)
    }

    /// Cargo at the root of this checkout, in the environment that a user's shell would give it.
    ///
    /// What the outer `cargo run` added is taken out again: cargo rebuilds a crate when a variable that its build
    /// script watches changes, and `LIBTORCH` is watched by one that takes minutes.
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

    /// Where cargo builds this checkout.
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
