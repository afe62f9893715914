//! `SHA256SUMS`, in the format of `sha256sum --check`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

/// The file's name.
pub const FILE: &str = "SHA256SUMS";

/// Writes the checksums of all files below a folder into it.
///
/// # Errors
/// Returns an error if one cannot be read, or if the list cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let names: Result<Vec<_>> =
        files_below(root)?.iter().filter(|path| *path != Path::new(FILE)).map(|path| as_text(path)).collect();
    write_of(root, &names?)
}

/// Writes the checksums of these files of a folder into it.
///
/// # Errors
/// Returns an error if one cannot be read, or if the list cannot be written.
pub fn write_of(folder: &Path, names: &[String]) -> Result<()> {
    let mut lines = String::new();
    for name in names {
        writeln!(lines, "{}  {name}", of_file(&folder.join(name))?).expect("a String takes every text");
    }
    fs::write(folder.join(FILE), lines).with_context(|| format!("write {FILE}"))
}

/// Returns a file's SHA-256, in lower-case hexadecimal.
///
/// # Errors
/// Returns an error if it cannot be read.
pub fn of_file(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    File::open(path)
        .and_then(|mut file| io::copy(&mut file, &mut hasher))
        .with_context(|| format!("read {}", path.display()))?;
    Ok(in_hexadecimal(&hasher.finalize()))
}

/// Formats bytes as lower-case hexadecimal.
pub fn in_hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns all files below a folder, relative to it and ordered by name.
///
/// # Errors
/// Returns an error if a folder cannot be listed.
pub fn files_below(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let listed = root.join(&folder);
        let entries = fs::read_dir(&listed).with_context(|| format!("list {}", listed.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", listed.display()))?;
            let path = folder.join(entry.file_name());
            // The target of a link is packed, if it is a file.
            match fs::metadata(entry.path()).with_context(|| format!("look at {}", path.display()))?.is_dir()
            {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns a path as UTF-8; all packed paths are.
///
/// # Errors
/// Returns an error if it is not UTF-8.
pub fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("the name of {} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_listed_is_what_sha256sum_checks() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        fs::write(folder.path().join("bin/worker"), "a program").unwrap();
        fs::write(folder.path().join("README.md"), "").unwrap();
        let check = || {
            let mut command = Command::new("sha256sum");
            command.args(["--check", "--quiet", FILE]).current_dir(folder.path());
            command.output().unwrap().status.success()
        };
        write(folder.path()).unwrap();
        // Again, with the list present.
        write(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        let names: Vec<_> = text.lines().map(|line| line.split_once("  ").unwrap().1).collect();
        assert_eq!(names, ["README.md", "bin/worker"]);
        assert!(check());
        fs::write(folder.path().join("bin/worker"), "another").unwrap();
        assert!(!check());
    }
}
