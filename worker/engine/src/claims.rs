//! Choice of a GPU for a worker with a free choice: one that no other worker has.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Claims the first free GPU for the lifetime of this process. If all are taken, the first one is shared.
pub(super) fn claim(gpus: usize) -> usize {
    match claim_among(0..gpus) {
        Some(index) => {
            if gpus > 1 {
                tracing::info!("taking cuda:{index}, the first free one of {gpus} GPUs");
            }
            index
        }
        None => {
            tracing::warn!(
                "each of {gpus} GPUs has a worker, or they cannot be distinguished: sharing cuda:0; choose another one with `--device cuda:N`"
            );
            0
        }
    }
}

/// Marks an explicitly chosen GPU as taken, so that workers with a free choice take another one.
pub(super) fn hold(index: usize) {
    // Sharing on purpose is permitted, and this process itself may hold it.
    let _ = claim_among(index..index + 1);
}

/// Claims the first free one of these for the lifetime of this process.
fn claim_among(indices: Range<usize>) -> Option<usize> {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let (first, names) = (indices.start, indices.map(|index| name_of(index, visible.as_deref())));
    let (place, lock) = claim_in(&folder(), names)?;
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
    Some(first + place)
}

/// Returns a folder writable by all users, and shared by services with private temporary folders.
fn folder() -> PathBuf {
    let shared = Path::new("/run/lock");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// Locks the first unlocked name; returns its index and lock.
fn claim_in(folder: &Path, names: impl Iterator<Item = String>) -> Option<(usize, File)> {
    names.enumerate().find_map(|(index, name)| {
        let path = folder.join(format!("longhaul-gpu-{name}.lock"));
        // A file of another user can be locked, and not written.
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o666).open(&path);
        let file = file.or_else(|_| File::open(&path)).ok()?;
        file.try_lock().ok()?;
        Some((index, file))
    })
}

/// Returns a GPU's name on this machine: its number, or its entry in `CUDA_VISIBLE_DEVICES`. Processes that name a GPU differently there do not see each
/// other.
fn name_of(index: usize, visible: Option<&str>) -> String {
    let named = visible.and_then(|visible| visible.split(',').nth(index)).map(str::trim);
    let name = named.filter(|name| !name.is_empty()).map_or_else(|| index.to_string(), str::to_owned);
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_takes_another_one_and_one_that_ends_gives_its_own_back() {
        let folder = tempfile::tempdir().unwrap();
        let claim = || claim_in(folder.path(), (0..3).map(|index| name_of(index, None)));
        let (first, second, third) = (claim().unwrap(), claim().unwrap(), claim().unwrap());
        assert_eq!((first.0, second.0, third.0), (0, 1, 2));
        assert!(claim().is_none());
        drop(second);
        assert_eq!(claim().unwrap().0, 1);
    }

    #[test]
    fn a_gpu_has_one_name_whatever_is_visible() {
        assert_eq!(name_of(1, None), "1");
        assert_eq!(name_of(1, Some("4, 6")), "6");
        assert_eq!(name_of(0, Some("GPU-3a/b")), "GPU-3a_b");
        assert_eq!(name_of(2, Some("4,6")), "2");
    }
}
