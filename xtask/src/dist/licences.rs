//! The licences of third-party code: most require their text to accompany the programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::dist::libtorch::Libtorch;
use crate::dist::packages::{Package, Packages};
use crate::dist::sums;

/// Starts of the names of licence files, in lower case.
const BEGINNINGS: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];
/// Separator of texts.
const RULE: &str = "--------------------------------------------------------------------------------";

/// Writes `rust.txt` and copies libtorch's licences.
///
/// # Errors
/// Returns an error if a text cannot be read, or if libtorch has none.
pub fn collect(packages: &Packages, libtorch: &Libtorch, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context("create the folder of licences")?;
    fs::write(folder.join("rust.txt"), of_packages(packages.iter())?)
        .context("write the licences of packages")?;
    let assembled = libtorch.licences()?;
    for path in sums::files_below(&assembled)? {
        let to = folder.join(&path);
        let parent = to.parent().unwrap_or(folder);
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::copy(assembled.join(&path), &to)
            .with_context(|| format!("copy the licence {}", path.display()))?;
    }
    Ok(())
}

/// Returns each text once, after the names of its packages.
fn of_packages<'a>(packages: impl Iterator<Item = &'a Package>) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::new();
    for package in packages.filter(|package| package.source.is_some() && !package.builds_only) {
        let licence = package.license.as_deref().unwrap_or("see below");
        writeln!(list, "{}: {licence}", package.reference()).expect("a String takes every text");
        let found = texts_of(package)?;
        if found.is_empty() {
            // In this case the expression and the authors have to suffice.
            let from = package.repository.as_deref().unwrap_or("crates.io");
            let authors = package.authors.join(", ");
            writeln!(list, "    (no text in the package; {from}; {authors})")
                .expect("a String takes every text");
        }
        for text in found {
            texts.entry(text).or_default().push(package.reference());
        }
    }
    let mut ordered: Vec<_> = texts.into_iter().map(|(text, users)| (users, text)).collect();
    ordered.sort();
    let mut all = format!("What the programs contain of others, and under which licences.\n\n{list}");
    for (users, text) in ordered {
        write!(all, "\n{RULE}\n{}\n{RULE}\n\n{}\n", users.join("\n"), text.trim_end())
            .expect("a String takes every text");
    }
    Ok(all)
}

fn texts_of(package: &Package) -> Result<Vec<String>> {
    let folder = package.folder();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry.with_context(|| format!("list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    if let Some(file) = &package.license_file {
        paths.push(folder.join(file));
    }
    paths.sort();
    paths.dedup();
    let read = |path: &PathBuf| -> Result<String> {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
    };
    paths.iter().map(read).collect()
}
