//! A state directory that is made for a coordinator, with its records. If the coordinator does not start, they are removed: the next one finds the folder as it was.
//! Where records are elsewhere nothing is: a coordinator that waits for its turn may share the folder with one that leads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::found::{FoundError, RequestedRun, open_store};
use crate::history;
use crate::record;
use crate::store::{API_READ_TOKEN_FILE, API_TOKEN_FILE, HTTP_ADDRESS_FILE, Store};

/// Files that a coordinator creates in its state directory, besides the records. Nothing else is touched.
const MADE: [&str; 5] =
    [API_TOKEN_FILE, API_READ_TOKEN_FILE, HTTP_ADDRESS_FILE, history::FOLDER, record::FOLDER];
/// Ends the name of a file that is being written.
const PARTIAL: &str = ".partial";

/// A state directory until a coordinator runs on it. Drop the holder of its open records first.
#[derive(Debug)]
pub struct FreshFolder {
    folder: PathBuf,
    /// Itself and the folders around it, as far as they were not there, the innermost first.
    missing: Vec<PathBuf>,
    /// Its content before.
    before: BTreeSet<PathBuf>,
    /// Whether records were made in it that have no run before this coordinator founds one.
    has_records: bool,
    is_kept: bool,
}

impl FreshFolder {
    /// Makes the folder with records that have no run yet.
    ///
    /// # Errors
    /// [`FoundError::Store`], or [`FoundError::NoRun`]
    pub fn with_records(folder: &Path, wanted: &RequestedRun) -> Result<(Self, Store), FoundError> {
        let mut fresh = Self::look_at(folder);
        let store = open_store(folder, wanted)?;
        // Another coordinator may have been faster.
        fresh.has_records = store.founding()?.is_none();
        fresh.is_kept = !fresh.has_records;
        Ok((fresh, store))
    }

    /// A coordinator runs: all of it stays.
    pub fn keep(mut self) {
        self.is_kept = true;
    }

    fn look_at(folder: &Path) -> Self {
        let is_missing = |at: &&Path| !at.as_os_str().is_empty() && matches!(at.try_exists(), Ok(false));
        Self {
            folder: folder.to_owned(),
            missing: folder.ancestors().take_while(is_missing).map(Path::to_owned).collect(),
            before: entries(folder),
            has_records: false,
            is_kept: false,
        }
    }

    fn take_away(&self) -> io::Result<()> {
        if !Store::is_in(&self.folder).map_err(io::Error::other)? {
            return Ok(());
        }
        // If another process has them open, all of it belongs to that one.
        let records = Store::open(&self.folder).map_err(io::Error::other)?;
        let made = entries(&self.folder);
        let made = made.difference(&self.before).filter(|path| is_of_a_coordinator(&self.folder, path));
        // They go first: without them the run cannot go on, whatever else stays.
        let removed = records.remove(&self.folder);
        made.map(|path| remove(path)).fold(removed, io::Result::and)
    }
}

impl Drop for FreshFolder {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if self.has_records
            && let Err(error) = self.take_away()
        {
            let folder = self.folder.display();
            tracing::warn!(%error, "could not remove all new files from the state directory {folder}");
        }
        // Folders that are not empty belong to others.
        let _ = self.missing.iter().try_for_each(fs::remove_dir);
    }
}

/// Content of a state directory, including the folders of records: those of earlier runs stay.
fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    let of = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = [folder.to_owned(), folder.join(history::FOLDER), folder.join(record::FOLDER)];
    folders.into_iter().flat_map(of).collect()
}

fn is_of_a_coordinator(folder: &Path, path: &Path) -> bool {
    let inside = path.strip_prefix(folder).ok().and_then(|inside| inside.iter().next());
    let name = inside.and_then(|name| name.to_str()).unwrap_or_default();
    MADE.contains(&name.strip_suffix(PARTIAL).unwrap_or(name))
}

/// Removes a file or a folder; an enclosed one may have gone with its folder.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.is_dir() && !path.is_symlink() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::RunConfig;

    use super::super::found;
    use super::*;
    use crate::store::{read_small, write_private, write_public};

    fn wanted() -> RequestedRun {
        let config = RunConfig::parse(include_str!("../../../examples/demo.toml")).unwrap();
        RequestedRun { config, extend: false }
    }

    fn names(folder: &Path) -> Vec<String> {
        entries(folder).iter().map(|path| path.strip_prefix(folder).unwrap().display().to_string()).collect()
    }

    /// All that a coordinator makes before it runs.
    fn begun(folder: &Path) -> FreshFolder {
        let (fresh, store) = FreshFolder::with_records(folder, &wanted()).unwrap();
        write_public(&folder.join(HTTP_ADDRESS_FILE), "127.0.0.1:1").unwrap();
        found(&store, folder, &wanted(), 1_900_000_000).unwrap();
        for name in [history::FOLDER, record::FOLDER] {
            fs::create_dir_all(folder.join(name).join("new")).unwrap();
            fs::write(folder.join(name).join("new").join("file"), "new").unwrap();
        }
        fresh
    }

    #[test]
    fn what_was_made_for_a_coordinator_that_does_not_run_is_taken_away_with_its_folders() {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("runs").join("state");
        drop(begun(&folder));
        assert!(!around.path().join("runs").exists());
        begun(&folder).keep();
        assert_eq!(names(&folder).len(), 8, "{:?}", names(&folder));
        assert!(Store::open(&folder).unwrap().founding().unwrap().is_some());
    }

    #[test]
    fn what_was_there_before_stays() {
        let folder = tempfile::tempdir().unwrap();
        write_private(&folder.path().join(API_TOKEN_FILE), "old").unwrap();
        fs::create_dir_all(folder.path().join(history::FOLDER).join("earlier")).unwrap();
        fs::write(folder.path().join("notes"), "somebody's").unwrap();
        let before = names(folder.path());
        let fresh = begun(folder.path());
        // Created meanwhile.
        fs::write(folder.path().join("more notes"), "somebody's").unwrap();
        drop(fresh);
        fs::remove_file(folder.path().join("more notes")).unwrap();
        assert_eq!(names(folder.path()), before);
        assert_eq!(read_small(&folder.path().join(API_TOKEN_FILE)).unwrap().as_deref(), Some("old"));
    }

    /// Another one, that is as quick as this one is slow.
    #[test]
    fn what_another_coordinator_has_open_stays() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = begun(folder.path());
        let made = names(folder.path());
        let other = Store::open(folder.path()).unwrap();
        drop(fresh);
        drop(other);
        assert_eq!(names(folder.path()), made);
        let (fresh, _store) = FreshFolder::with_records(folder.path(), &wanted()).unwrap();
        drop(fresh);
        assert_eq!(names(folder.path()), made, "it has a run");
    }
}
