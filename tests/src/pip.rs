//! Programs from PyPI, at pinned versions, for tests.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools::skipped;

/// pip's message if no reachable index has the package at all. For an unknown version it differs.
const UNREACHABLE: &str = "(from versions: none)";
/// venv's message if pip, which it installs, is missing.
const NO_VENV: &str = "ensurepip is not";

/// A package of PyPI. Each gets its own environment.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Name, for pip.
    pub name: &'static str,
    /// Exact version.
    pub version: &'static str,
}

/// Reasons why a package is not available.
#[derive(Debug)]
pub enum Unavailable {
    /// No reachable index has it, which cannot be fixed here.
    Offline,
    /// python3 or its `venv` is missing.
    NoPython,
    /// Any other failure.
    Broken(anyhow::Error),
}

impl Package {
    /// Returns the folder with its `bin`, in the user's cache folder, created once for all checkouts. `None`,
    /// with a notice: no index is reachable.
    ///
    /// # Panics
    /// The package cannot be installed from a reachable index; or no test may be skipped
    /// ([`EVERY_TOOL`](crate::tools::EVERY_TOOL)).
    #[must_use]
    pub fn for_a_test(self) -> Option<PathBuf> {
        or_skipped(self.install(), self.name)
    }

    /// Returns the folder with its `bin`, in the user's cache folder.
    ///
    /// # Errors
    /// [`Unavailable`]
    pub fn install(self) -> Result<PathBuf, Unavailable> {
        self.install_in(&cache().map_err(Unavailable::Broken)?, &[])
    }

    /// The same in another folder and with options for pip.
    ///
    /// # Errors
    /// [`Unavailable`]
    pub fn install_in(self, cache: &Path, pip_options: &[&str]) -> Result<PathBuf, Unavailable> {
        let folder = cache.join(format!("{}-{}", self.name, self.version));
        fs::create_dir_all(cache).context("create the cache folder").map_err(Unavailable::Broken)?;
        // Held until the installation is complete; the system releases it when the process dies.
        let _lock = self.lock(cache).map_err(Unavailable::Broken)?;
        if !folder.exists() {
            let partial = folder.with_added_extension("partial");
            self.make(&partial, pip_options)?;
            // An existing folder is complete.
            fs::rename(&partial, &folder).context("name the installation").map_err(Unavailable::Broken)?;
        }
        Ok(folder)
    }

    /// Creates the environment. It may be renamed, so scripts that contain its path are unusable: only
    /// `bin/python3` and binary programs may be started.
    fn make(self, folder: &Path, pip_options: &[&str]) -> Result<(), Unavailable> {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Unavailable::Broken(error.into()));
            }
            _ => {}
        }
        let requirement = format!("{}=={}", self.name, self.version);
        install_into(folder, pip_options, requirement.as_ref())
    }

    fn lock(self, cache: &Path) -> Result<File> {
        let path = cache.join(format!("{}.lock", self.name));
        let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(file)
    }
}

/// Installs a project's folder into an environment in this folder. `None`, with a notice: no reachable index
/// has its build tools.
///
/// # Panics
/// It cannot be installed; or no test may be skipped ([`EVERY_TOOL`](crate::tools::EVERY_TOOL)).
#[must_use]
pub fn install_project_for_a_test(project: &Path, folder: &Path) -> Option<()> {
    or_skipped(install_into(folder, &[], project.as_os_str()), &format!("what builds {}", project.display()))
}

/// Returns the installation, or prints a notice that a test is skipped.
fn or_skipped<T>(installed: Result<T, Unavailable>, what: &str) -> Option<T> {
    match installed {
        Ok(there) => Some(there),
        Err(Unavailable::Offline) => {
            skipped(&format!("pip reaches no index with {what}"));
            None
        }
        Err(Unavailable::NoPython) => {
            skipped(&format!("there is no python3 with venv for {what}"));
            None
        }
        Err(Unavailable::Broken(error)) => panic!("install {what}: {error:#}"),
    }
}

/// Creates an environment and installs the package.
fn install_into(folder: &Path, pip_options: &[&str], what: &std::ffi::OsStr) -> Result<(), Unavailable> {
    python("python3".as_ref(), &["-m", "venv"], &[folder.as_os_str()])?;
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--no-input", "--retries", "1"];
    let pip: Vec<&str> = pip.iter().chain(pip_options).copied().collect();
    python(&folder.join("bin/python3"), &pip, &[what])
}

fn python(python: &Path, args: &[&str], last: &[&std::ffi::OsStr]) -> Result<(), Unavailable> {
    let output = match Command::new(python).args(args).args(last).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unavailable::NoPython),
        output => {
            output.with_context(|| format!("start {}", python.display())).map_err(Unavailable::Broken)?
        }
    };
    if output.status.success() {
        return Ok(());
    }
    refused(python, args, &output)
}

/// Classifies a failure by its output.
fn refused(python: &Path, args: &[&str], output: &Output) -> Result<(), Unavailable> {
    // Distributions with a separate venv package report on standard output.
    if String::from_utf8_lossy(&output.stdout).contains(NO_VENV) {
        return Err(Unavailable::NoPython);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    if words.contains("No module named venv") {
        return Err(Unavailable::NoPython);
    }
    if words.contains(UNREACHABLE) {
        return Err(Unavailable::Offline);
    }
    Err(Unavailable::Broken(anyhow::anyhow!("{} {}: {words}", python.display(), args.join(" "))))
}

/// `$XDG_CACHE_HOME/longhaul`, or `~/.cache/longhaul`; the XDG specification ignores relative paths.
fn cache() -> Result<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache"))) {
        Some(caches) => Ok(caches.join("longhaul")),
        None => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_index_has_a_package_it_is_unavailable_and_nothing_half_made_counts_as_installed() {
        let cache = tempfile::tempdir().unwrap();
        let package = Package { name: "kubernetes-validate", version: "1.37.0" };
        for _ in 0..2 {
            let missing = package.install_in(cache.path(), &["--no-index", "--find-links", "."]).unwrap_err();
            assert!(matches!(missing, Unavailable::Offline), "{missing:?}");
        }
    }

    #[test]
    fn a_python_without_environments_is_none() {
        use std::os::unix::process::ExitStatusExt as _;

        let missing = python("/nowhere/python3".as_ref(), &[], &[]).unwrap_err();
        assert!(matches!(missing, Unavailable::NoPython), "{missing:?}");
        let output = |stdout: &str, stderr: &str| Output {
            status: std::process::ExitStatus::from_raw(1 << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        for (stdout, stderr) in [
            ("The virtual environment was not created because ensurepip is not\navailable.", ""),
            ("", "/usr/bin/python3: No module named venv"),
        ] {
            let missing = refused("python3".as_ref(), &[], &output(stdout, stderr)).unwrap_err();
            assert!(matches!(missing, Unavailable::NoPython), "{missing:?}");
        }
        let broken = refused("python3".as_ref(), &[], &output("", "a full disk")).unwrap_err();
        assert!(matches!(broken, Unavailable::Broken(_)), "{broken:?}");
    }
}
