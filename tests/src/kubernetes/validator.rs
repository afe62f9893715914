//! Kubernetes' own schemas, through the Python package kubernetes-validate.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The release of kubernetes-validate; it has the schemas of Kubernetes 1.25 to 1.37.
const VERSION: &str = "1.37.0";
/// What pip writes when no index that it can reach has the package at all. A mistaken version it words otherwise.
const UNREACHABLE: &str = "(from versions: none)";

/// An installed kubernetes-validate.
#[derive(Clone, Debug)]
pub struct Validator {
    python: PathBuf,
}

/// Why there is no validator.
#[derive(Debug)]
pub enum Unavailable {
    /// pip reaches no package index that has it: there is nothing to be done about it from here.
    Offline,
    /// Anything else.
    Broken(anyhow::Error),
}

impl Validator {
    /// Takes the installation in the user's cache folder, or makes it there, once for all checkouts.
    ///
    /// # Errors
    /// [`Unavailable`]
    pub fn install() -> Result<Self, Unavailable> {
        Self::install_in(&cache().map_err(Unavailable::Broken)?, &[])
    }

    /// Likewise, in another folder and with options for pip.
    ///
    /// # Errors
    /// [`Unavailable`]
    pub fn install_in(cache: &Path, pip_options: &[&str]) -> Result<Self, Unavailable> {
        let folder = cache.join(format!("kubernetes-validate-{VERSION}"));
        let validator = Self { python: folder.join("bin/python3") };
        fs::create_dir_all(cache).context("create the cache folder").map_err(Unavailable::Broken)?;
        // Held until the installation is complete; the system lets go of it when the process dies.
        let _lock = lock(cache).map_err(Unavailable::Broken)?;
        if !folder.exists() {
            let partial = cache.join(format!("kubernetes-validate-{VERSION}.partial"));
            make(&partial, pip_options)?;
            // A folder that is there is whole.
            fs::rename(&partial, &folder).context("name the installation").map_err(Unavailable::Broken)?;
        }
        Ok(validator)
    }

    /// Validates objects strictly (unknown fields are errors) against the schemas of a release of Kubernetes.
    ///
    /// # Errors
    /// What is wrong with the first faulty object, or that a kind or the release is not known.
    pub fn validate(&self, objects: &[Value], kubernetes: &str) -> Result<()> {
        let mut command = Command::new(&self.python);
        command.args(["-m", "kubernetes_validate", "--strict", "--kubernetes-version", kubernetes, "-"]);
        let output = run_with_input(&mut command, &yaml_stream(objects))?;
        let report = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
        // Kinds that it does not know are only warned of, and for an unknown release it takes an older one.
        let verdict = format!("against version {kubernetes}");
        let passed: BTreeSet<&str> =
            report.lines().filter(|line| line.starts_with("INFO") && line.ends_with(&verdict)).collect();
        ensure!(
            passed.len() == objects.len(),
            "{} of {} objects passed:\n{report}",
            passed.len(),
            objects.len()
        );
        Ok(())
    }
}

/// JSON is YAML, and a line of dashes parts documents.
fn yaml_stream(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

fn run_with_input(command: &mut Command, input: &str) -> Result<Output> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.context("start kubernetes-validate")?;
    // It reads all of its input before it writes, so neither side waits for the other. The pipe closes here.
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().context("wait for kubernetes-validate")?;
    match written {
        // It may have died before it read; its own words say more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("write the manifests"),
        _ => Ok(output),
    }
}

/// Makes the environment. It may be renamed: nothing is started by the scripts in it, which hold its path.
fn make(folder: &Path, pip_options: &[&str]) -> Result<(), Unavailable> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Unavailable::Broken(error.into()));
        }
        _ => {}
    }
    python("python3".as_ref(), &["-m", "venv"], &[folder.as_os_str()])?;
    let requirement = format!("kubernetes-validate=={VERSION}");
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "--no-input", "--retries", "1"];
    let pip: Vec<&str> = pip.iter().chain(pip_options).copied().collect();
    python(&folder.join("bin/python3"), &pip, &[requirement.as_ref()])
}

fn python(python: &Path, args: &[&str], last: &[&std::ffi::OsStr]) -> Result<(), Unavailable> {
    let output = Command::new(python).args(args).args(last).stdin(Stdio::null()).output();
    let output =
        output.with_context(|| format!("start {}", python.display())).map_err(Unavailable::Broken)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    if words.contains(UNREACHABLE) {
        return Err(Unavailable::Offline);
    }
    Err(Unavailable::Broken(anyhow::anyhow!("{} {}: {words}", python.display(), args.join(" "))))
}

fn lock(cache: &Path) -> Result<File> {
    let path = cache.join("kubernetes-validate.lock");
    let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// `$XDG_CACHE_HOME/longhaul`, or `~/.cache/longhaul`; the XDG specification has relative paths ignored.
fn cache() -> Result<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache"))) {
        Some(caches) => Ok(caches.join("longhaul")),
        None => bail!("neither XDG_CACHE_HOME nor HOME is set"),
    }
}
