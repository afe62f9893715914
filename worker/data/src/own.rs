//! Files and folders of this program, which patterns skip.

use std::ffi::OsStr;
use std::fs::ReadDir;
use std::path::Path;

use super::cache;

/// Files that identify a coordinator's state directory: its records, or, if these are elsewhere, the files read by its commands.
const STATE_FILES: [&[&str]; 2] = [&["coordinator.redb"], &["api-token", "http-address"]];
/// Entries of a coordinator's state directory.
const STATE: [&str; 7] = [
    "coordinator.redb",
    "coordinator.redb.new",
    "api-token",
    "api-read-token",
    "http-address",
    "history",
    "decisions",
];
/// File with the workers' identities, beside prepared data in a worker's cache.
const WORKERS: &str = "workers";

/// Whether a folder is a worker's cache, its prepared data, or a coordinator's state directory, judged by content; it may hold other files, too.
pub(super) fn is_folder(folder: &Path) -> bool {
    is_cache(folder) || cache::is_laid_out(&folder.join(cache::FOLDER)) || is_state(folder)
}

/// Whether a folder holds only prepared data: with `--cache-dir .`, it may also hold the user's data.
fn is_cache(folder: &Path) -> bool {
    let is_ours = |name: &OsStr| name.to_str().is_some_and(cache::has_made);
    let only_ours =
        |mut entries: ReadDir| entries.all(|entry| entry.is_ok_and(|entry| is_ours(&entry.file_name())));
    cache::is_laid_out(folder) && std::fs::read_dir(folder).is_ok_and(only_ours)
}

/// Whether a file or a folder belongs to this program, regardless of its neighbours.
pub(super) fn is_kept(path: &Path, is_folder: bool) -> bool {
    let (Some(name), Some(parent)) = (path.file_name().and_then(|name| name.to_str()), path.parent()) else {
        return false;
    };
    STATE.contains(&name) && is_state(parent)
        || cache::is_laid_out(parent) && cache::has_made(name)
        || is_folder && name == WORKERS && cache::is_laid_out(&parent.join(cache::FOLDER))
        || is_folder && is_cache(path)
}

fn is_state(folder: &Path) -> bool {
    let has_all = |files: &[&str]| files.iter().all(|file| folder.join(file).is_file());
    STATE_FILES.iter().any(|files| has_all(files))
}
