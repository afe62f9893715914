//! Which GPU of this machine a worker takes that was told to take any: one that no other worker has.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Takes a GPU for as long as this process lives, the first one that is free. Where each is taken, the first one is shared.
pub(super) fn claim(gpus: usize) -> usize {
    match claim_among(0..gpus) {
        Some(index) => {
            if gpus > 1 {
                tracing::info!(
                    "of {gpus} GPUs, cuda:{index} is the first that no other worker here has: this one takes it"
                );
            }
            index
        }
        None => {
            tracing::warn!(
                "each of {gpus} GPUs has a worker, or they cannot be told apart: this one computes on cuda:0 as well; `--device cuda:N` chooses"
            );
            0
        }
    }
}

/// Says that this process has a GPU that it was told to take, so that whoever may take any takes another one.
pub(super) fn hold(index: usize) {
    // Whoever shares it on purpose may, and it may be this process that has it.
    let _ = claim_among(index..index + 1);
}

/// Takes the first free one of these for as long as this process lives.
fn claim_among(indices: Range<usize>) -> Option<usize> {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let (first, names) = (indices.start, indices.map(|index| name_of(index, visible.as_deref())));
    let (place, lock) = claim_in(&folder(), names)?;
    HELD.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
    Some(first + place)
}

/// One that all users of the machine may write in, and that services share which have temporary folders of their own.
fn folder() -> PathBuf {
    let shared = Path::new("/run/lock");
    if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() }
}

/// The first name that nobody has locked, and its lock.
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

/// A GPU's name on this machine, whatever part of its GPUs this process sees: its number, or as `CUDA_VISIBLE_DEVICES` has it. Processes for which that names
/// it otherwise do not see each other.
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
