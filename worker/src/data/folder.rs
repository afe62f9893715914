//! A folder of images as one source: which files it has, and whether they are as they were.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::DataError;
use super::stamp::State;
use super::work::FileWork;

/// Images of a folder, at most: their names are in memory while it is prepared.
const IMAGES_MAX: usize = 1 << 25;
/// Images that are hashed side by side between two looks at whether to go on.
const HASHED_TOGETHER: usize = 256;
/// Endings of names that are read.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// The folders of a folder's classes, by name: the first is class 0. One whose name begins with a point is no class, as tools keep their own things in such.
pub(super) fn classes_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let is_hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir() && !is_hidden(path)).collect())
}

/// The names of the classes of a folder of images, in order.
///
/// # Errors
/// It cannot be read.
pub fn class_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(classes_in(folder)?.into_iter().map(name).collect())
}

/// The images of a folder with their classes; by name within a class, and each class spread evenly over all, so that what is held out has its share of each. Other
/// files are nothing to it.
pub(super) fn images_in(folder: &Path) -> Result<Vec<(u32, PathBuf)>, DataError> {
    let refused = |folder: &Path, reason: String| DataError::Folder { path: folder.to_owned(), reason };
    let mut images = Vec::new();
    for (class, inner) in (0..).zip(classes_in(folder)?) {
        let before = images.len();
        let mut files = entries(&inner)?;
        files.retain(|path| is_image(path) && path.is_file());
        let count = files.len() as u64;
        images.extend((0..).zip(files).map(|(index, path)| (index, count, class, path)));
        if images.len() == before {
            let reason =
                "a class without an image: give it some (.jpg, .jpeg or .png), or take the folder away";
            return Err(refused(&inner, reason.to_owned()));
        }
        if images.len() > IMAGES_MAX {
            let reason = format!("it has more than {IMAGES_MAX} images: pack them, as WebDataset does");
            return Err(refused(folder, reason));
        }
    }
    if images.is_empty() {
        return Err(refused(
            folder,
            "it has no folders, of which each is to have the images of a class".to_owned(),
        ));
    }
    // By the middle of the index-th of `count` equal parts, (2i + 1) / 2n, without dividing.
    images.sort_by(|(i, n, ..), (j, m, ..)| u64::cmp(&((2 * i + 1) * m), &((2 * j + 1) * n)));
    Ok(images.into_iter().map(|(_, _, class, path)| (class, path)).collect())
}

/// What changes when an image comes, goes, or is written.
pub(super) fn state(folder: &Path) -> Result<State, DataError> {
    let (mut bytes, mut newest, mut hasher) = (0, (i64::MIN, 0), blake3::Hasher::new());
    for (class, path) in images_in(folder)? {
        let metadata = std::fs::metadata(&path).map_err(DataError::io("open", &path))?;
        let time = (metadata.mtime(), metadata.mtime_nsec());
        bytes += metadata.len();
        newest = newest.max(time);
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        hasher.update(&class.to_le_bytes());
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        for number in [metadata.len() as i64, time.0, time.1, metadata.ino() as i64] {
            hasher.update(&number.to_le_bytes());
        }
    }
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    // For the inode there is a number of all names, times and inodes.
    Ok(State { bytes, modified_s: newest.0, modified_ns: newest.1, inode: u64::from_le_bytes(number) })
}

/// BLAKE3 of all that the images are made of, in hexadecimal.
pub(super) fn hash(folder: &Path, work: &mut FileWork<'_>) -> Result<String, DataError> {
    let (mut hasher, mut hashed) = (blake3::Hasher::new(), 0);
    for images in images_in(folder)?.chunks(HASHED_TOGETHER) {
        work.work.goes_on()?;
        let of_each = images.par_iter().map(|(_, path)| hash_of_file(path));
        let of_each = of_each.collect::<Result<Vec<_>, DataError>>()?;
        for ((class, _), (hash, bytes)) in images.iter().zip(of_each) {
            hasher.update(&class.to_le_bytes());
            hasher.update(hash.as_bytes());
            hashed += bytes;
        }
        work.has_hashed(hashed);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// BLAKE3 of a file, and its bytes.
fn hash_of_file(path: &Path) -> Result<(blake3::Hash, u64), DataError> {
    let file = std::fs::File::open(path).map_err(DataError::io("open", path))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).map_err(DataError::io("read", path))?;
    Ok((hasher.finalize(), hasher.count()))
}

fn is_image(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
    end.is_some_and(|end| ENDINGS.contains(&end.as_str()))
}

/// What is in a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let read = std::fs::read_dir(folder).map_err(DataError::io("open", folder))?;
    let entries = read.map(|entry| entry.map(|entry| entry.path()).map_err(DataError::io("open", folder)));
    let mut entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    entries.sort_unstable();
    Ok(entries)
}
