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
    let mut missing = Vec::new();
    for (folder, there) in folders {
        let Some(State { files, selected }) = state_of(folder) else { continue };
        if selected.is_some_and(|files| !files.is_empty()) {
            return Err(format!(
                "{} says that a part of the rows was selected: write those alone (`datasets.load_from_disk(DIR).flatten_indices().save_to_disk(OUT)`)",
                folder.join(STATE).display()
            ));
        }
        let named: BTreeSet<&Path> = files.iter().map(|file| file.filename.as_path()).collect();
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
}
