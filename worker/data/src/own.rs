//! Folders that this program keeps itself, and that no pattern means.

use std::path::Path;

use super::cache;

/// Files by which a coordinator's state directory is known: its records, or, where these are elsewhere, what its commands read.
const STATE_FILES: [&[&str]; 2] = [&["coordinator.redb"], &["api-token", "http-address"]];

/// Whether a folder is a worker's cache, the prepared data in one, or a coordinator's state directory, whichever is in use. It is known by what is in it.
pub(super) fn is_own(folder: &Path) -> bool {
    let has_all = |files: &[&str]| files.iter().all(|file| folder.join(file).is_file());
    cache::is_laid_out(folder)
        || cache::is_laid_out(&folder.join(cache::FOLDER))
        || STATE_FILES.iter().any(|files| has_all(files))
}
