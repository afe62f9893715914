//! Data sets of Hugging Face's `save_to_disk`: `state.json` lists their files; older files stay beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

const STATE: &str = "state.json";
/// Upper bound of its bytes: it has a name for each file.
const STATE_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    files: Vec<DataFile>,
    /// A selection of rows, stored beside all rows by earlier versions.
    #[serde(rename = "_indices_files", alias = "_indices_data_files", default)]
    selected: Option<Vec<DataFile>>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: PathBuf,
}

impl State {
    /// Returns the reason for refusing it, in this folder: some of its rows do not count.
    fn selection(&self, folder: &Path) -> Option<String> {
        let is_one = self.selected.as_ref().is_some_and(|files| !files.is_empty());
        is_one.then(|| {
            format!(
                "{} says that a part of the rows was selected: write those alone (`datasets.load_from_disk(DIR).flatten_indices().save_to_disk(OUT)`)",
                folder.join(STATE).display()
            )
        })
    }

    fn names(&self, file: &Path) -> bool {
        self.files.iter().any(|named| named.filename == file)
    }
}

/// Returns the reason for refusing a file that is named alone: it is of such a data set, which counts some of its rows only. Links are followed.
pub(super) fn selection_of(path: &Path) -> Option<String> {
    let of = |path: &Path| {
        let (folder, name) = (path.parent()?, Path::new(path.file_name()?));
        state_of(folder).filter(|state| state.names(name))?.selection(folder)
    };
    of(path).or_else(|| of(&std::fs::canonicalize(path).ok().filter(|_| path.is_symlink())?))
}

/// Returns files of such data sets that the pattern matches but that are absent from `files`.
///
/// # Errors
/// The reason why some of `files` do not belong to their data set.
pub(super) fn missing(files: &[PathBuf], is_wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, String> {
    let mut folders = BTreeMap::<&Path, BTreeSet<&Path>>::new();
    for path in files {
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            folders.entry(folder).or_default().insert(Path::new(name));
        }
    }
    if let Some(reason) = files.iter().filter(|path| path.is_symlink()).find_map(|path| selection_of(path)) {
        return Err(reason);
    }
    let mut missing = Vec::new();
    for (folder, there) in folders {
        let Some(state) = state_of(folder) else { continue };
        if let Some(reason) = state.selection(folder) {
            return Err(reason);
        }
        let named: BTreeSet<&Path> = state.files.iter().map(|file| file.filename.as_path()).collect();
        if let Some(other) = there.iter().find(|name| !named.contains(*name)) {
            return Err(format!(
                "it matches {}, which is none of the files that {} names: it is left over from another time, so remove it, or name the others alone",
                folder.join(other).display(),
                folder.join(STATE).display()
            ));
        }
        let not_there = named.difference(&there).map(|name| folder.join(name));
        missing.extend(not_there.filter(|path| is_wanted(path)));
    }
    Ok(missing)
}

/// Returns the state of a folder's data set; `None`: it holds none.
fn state_of(folder: &Path) -> Option<State> {
    let path = folder.join(STATE);
    let is_one = std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= STATE_BYTES_MAX);
    is_one.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_s_state_says_which_files_count() {
        let folder = tempfile::tempdir().unwrap();
        let of = |names: &[&str]| names.iter().map(|name| folder.path().join(name)).collect::<Vec<_>>();
        let files = of(&["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]);
        assert_eq!(missing(&files, |_| true), Ok(vec![]));
        let write = |state: &str| std::fs::write(folder.path().join(STATE), state).unwrap();
        let named =
            r#"[{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}]"#;
        write(&format!("{{\"_data_files\": {named}, \"_split\": null}}"));
        assert_eq!(missing(&files, |_| true), Ok(vec![]));
        assert_eq!(missing(&files[..1], |_| true), Ok(files[1..].to_vec()));
        assert_eq!(missing(&files[..1], |path| path == files[0]), Ok(vec![]));
        let stale = [of(&["dataset.arrow"]), files.clone()].concat();
        let told = missing(&stale, |_| true).unwrap_err();
        assert!(told.contains("dataset.arrow, which is none of the files that"), "{told}");
        for (state, is_one) in [
            (
                format!("{{\"_data_files\": {named}, \"_indices_files\": [{{\"filename\": \"i.arrow\"}}]}}"),
                true,
            ),
            (format!("{{\"_data_files\": {named}, \"_indices_files\": null}}"), false),
            ("{\"epoch\": 3}".to_owned(), false),
            ("[]".to_owned(), false),
            ("{".to_owned(), false),
        ] {
            write(&state);
            assert_eq!(missing(&files, |_| true).is_err(), is_one, "{state}");
        }
    }

    #[test]
    fn a_file_that_is_named_alone_counts_as_a_whole_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("links")).unwrap();
        std::fs::write(path("dataset.arrow"), "").unwrap();
        std::os::unix::fs::symlink(path("dataset.arrow"), path("links/a.arrow")).unwrap();
        let named = r#""_data_files": [{"filename": "dataset.arrow"}]"#;
        for (indices, is_one) in [
            (r#", "_indices_files": [{"filename": "indices.arrow"}]"#, true),
            (r#", "_indices_data_files": [{"filename": "indices.arrow"}]"#, true),
            (r#", "_indices_files": []"#, false),
            (r#", "_indices_data_files": null"#, false),
            ("", false),
        ] {
            std::fs::write(path(STATE), format!("{{{named}{indices}}}")).unwrap();
            for (name, is_named) in [
                ("dataset.arrow", true),
                ("links/a.arrow", true),
                ("flat.arrow", false),
                ("links/b.arrow", false),
            ] {
                let told = selection_of(&path(name));
                assert_eq!(told.is_some(), is_one && is_named, "{name}{indices}: {told:?}");
                assert!(told.is_none_or(|told| told.contains("flatten_indices()")));
            }
            assert_eq!(missing(&[path("links/a.arrow")], |_| true).is_err(), is_one, "{indices}");
        }
    }
}
