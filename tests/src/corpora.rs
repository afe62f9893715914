//! Replays stored fuzzing inputs on a stable compiler.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::panic::catch_unwind;
use std::path::Path;

use anyhow::{Context as _, Result};

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

/// Runs all inputs of a `tar.zst` with a folder per target and a file per input.
///
/// # Panics
/// A target panics, the targets differ from the sources in `sources`, or one has no input.
pub fn try_all(sources: &Path, archive: &[u8], targets: &[Target]) {
    let names: Vec<_> = targets.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, names_in(sources).expect("the sources of the targets"));
    let mut tried = BTreeMap::new();
    for (path, bytes) in inputs(archive).expect("an archive of inputs") {
        let of = |(name, _): &&Target| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        let (name, target) = targets.iter().find(of).unwrap_or_else(|| panic!("{path} is of no target"));
        assert!(catch_unwind(|| target(&bytes)).is_ok(), "{path}: see above");
        *tried.entry(*name).or_insert(0) += 1;
    }
    assert_eq!(tried.len(), targets.len(), "{tried:?}");
}

/// Returns names in order.
fn names_in(sources: &Path) -> Result<Vec<String>> {
    let files = sources.read_dir().with_context(|| format!("read {}", sources.display()))?;
    let mut names = Vec::new();
    for file in files {
        let path = file?.path();
        names.push(path.file_stem().context("a file without a name")?.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn inputs(archive: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(archive)?);
    let mut inputs = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let (path, mut bytes) = (entry.path()?.display().to_string(), Vec::new());
            entry.read_to_end(&mut bytes)?;
            inputs.push((path, bytes));
        }
    }
    Ok(inputs)
}
