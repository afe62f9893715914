//! Duplicate files matched by a pattern: packed copies, and snapshots of one repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Extensions of packed files, which are copies of an unpacked file of the same name.
const PACKED: [&str; 6] = ["gz", "zst", "gzip", "xz", "bz2", "lz4"];
/// Hugging Face's cache has the revisions of a repository here, each in a folder with all of its files.
const SNAPSHOTS: &str = "snapshots";

/// Returns a message about duplicates; `None`: the names suggest none.
pub(super) fn told(files: &[PathBuf]) -> Option<String> {
    packed(files).or_else(|| snapshots(files))
}

fn packed(files: &[PathBuf]) -> Option<String> {
    let is_packed = |path: &&PathBuf| {
        path.extension().is_some_and(|end| PACKED.iter().any(|packed| end.eq_ignore_ascii_case(packed)))
    };
    let plain = |path: &Path| path.with_extension("");
    let copy = files.iter().filter(is_packed).find(|path| files.binary_search(&plain(path)).is_ok())?;
    Some(format!(
        "it matches {} and {}, of which one is a packed copy of the other by its name: take one away, or name the others alone",
        plain(copy).display(),
        copy.display()
    ))
}

fn snapshots(files: &[PathBuf]) -> Option<String> {
    let mut of_repository = BTreeMap::<&Path, &Path>::new();
    // The working directory may be the folder of snapshots.
    let whole: Vec<PathBuf> = files.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
    for path in &whole {
        let Some(revision) = path
            .ancestors()
            .find(|folder| folder.parent().and_then(Path::file_name).is_some_and(|name| name == SNAPSHOTS))
        else {
            continue;
        };
        let Some(all) = revision.parent() else { continue };
        let first = *of_repository.entry(all).or_insert(revision);
        if first != revision && path != revision {
            return Some(format!(
                "it matches files in {} and in {}, which are two revisions of one repository: name that of one",
                first.display(),
                revision.display()
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_copies_and_second_revisions_are_told() {
        for (names, words) in [
            (&["a.jsonl", "a.jsonl.gz"][..], "a packed copy"),
            (&["d/a.txt", "d/a.txt.ZST", "d/b.txt"], "a packed copy"),
            (&["a.txt", "a.txt.xz"], "a packed copy"),
            (&["h/snapshots/1a/a.parquet", "h/snapshots/2b/a.parquet"], "two revisions"),
            (
                &["h/snapshots/1a/d/a.txt", "h/snapshots/1a/d/b.txt", "h/snapshots/2b/d/b.txt"],
                "two revisions",
            ),
        ] {
            let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            assert!(told(&files).unwrap().contains(words), "{names:?}");
        }
        for names in [
            &["a.jsonl.gz", "b.jsonl"][..],
            &["a.txt", "a.txt.1"],
            &["g/snapshots/1a/a.txt", "h/snapshots/2b/a.txt"],
            &["h/snapshots/a.txt", "h/snapshots/b.txt"],
        ] {
            let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            assert_eq!(told(&files), None, "{names:?}");
        }
    }
}
