//! A folder of images as one source: its files, and changes to them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use walkdir::WalkDir;

use super::DataError;
use super::bounds::RECORD_BYTES_MAX;
use super::image::{Pixels, RawImage};
use super::passed::{self, PassedOver, Reason};
use super::records::content;
use super::splits;
use super::stamp::{Changed, FileState, Seen};
use super::work::FileWork;
use crate::counted::counted;

/// Upper bound of images in a folder: their names are in memory during the preparation.
const IMAGES_MAX: usize = 1 << 25;
/// Images hashed in parallel between two checks for a stop.
const HASHED_TOGETHER: usize = 256;
/// Supported extensions.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Other extensions of images, also of JPEG and PNG.
const OTHER_ENDINGS: [&str; 41] = [
    "apng", "arw", "avif", "bmp", "cr2", "cr3", "dcm", "dds", "dib", "dicom", "dng", "eps", "exr", "fits",
    "gif", "hdr", "heic", "heif", "ico", "j2c", "j2k", "jfif", "jp2", "jpe", "jpf", "jpx", "jxl", "nef",
    "orf", "pbm", "pcx", "pgm", "pnm", "ppm", "psd", "qoi", "svg", "tga", "tif", "tiff", "webp",
];

/// Extensions of tables that other programs read beside images (`metadata.csv` of `datasets`), with other classes than by folders.
const TABLE_ENDINGS: [&str; 5] = ["csv", "json", "jsonl", "parquet", "tsv"];

/// An image of a folder, as listed.
#[derive(Clone, Debug)]
pub(super) struct FolderImage {
    pub(super) class: u32,
    /// Within the folder of its class.
    name: PathBuf,
    pub(super) path: PathBuf,
    pub(super) state: FileState,
    changed: Changed,
}

/// Returns the folders of the classes, by name: the first is class 0. Names with a leading dot are skipped, as tools keep their own files there.
pub(super) fn classes_in(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir() && !is_hidden(path)).collect())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Returns the names of the classes of a folder of images, in order.
///
/// # Errors
/// It cannot be read.
pub fn class_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(classes_in(folder)?.into_iter().map(name).collect())
}

/// Returns the images of a folder with their classes: by name within a class, and each class spread evenly, so that the held-out end has a share of each.
pub(super) fn images_in(folder: &Path) -> Result<Vec<FolderImage>, DataError> {
    Ok(listing(folder)?.0)
}

/// The same, with the files left out. Images of a class may be in subfolders.
pub(super) fn listing(folder: &Path) -> Result<(Vec<FolderImage>, PassedOver), DataError> {
    let refused = |folder: &Path, reason: String| DataError::Folder { path: folder.to_owned(), reason };
    let (mut images, mut passed) = (Vec::new(), PassedOver::default());
    for path in entries(folder)? {
        let is_image = has_ending(&path, &ENDINGS) || has_ending(&path, &OTHER_ENDINGS);
        match path.is_dir() {
            _ if is_hidden(&path) => passed.add(Reason::Hidden, &path),
            true => {}
            // It may be a missing class.
            false if path.is_symlink() && !path.exists() => passed.add(Reason::DanglingLink, &path),
            false if is_image => passed.add(Reason::NoClass, &path),
            false => passed.add(no_image(&path), &path),
        }
    }
    let names = class_names(folder)?;
    if splits::are_splits(&names) {
        let reason = "its folders are splits and no classes: name the folder of one, and what is to be held out under data.validation";
        return Err(refused(folder, reason.to_owned()));
    }
    let inner: Vec<Vec<String>> =
        classes_in(folder)?.iter().map(|class| class_names(class)).collect::<Result<_, _>>()?;
    if splits::are_arranged(&names, &inner) {
        let reason = format!(
            "its folders ({}) hold the same folders each ({}), which are taken for no classes: name one of them as a source; where they are classes all the same, call them otherwise",
            names.join(", "),
            inner.first().map(|inner| inner.join(", ")).unwrap_or_default()
        );
        return Err(refused(folder, reason));
    }
    for (class, inner) in (0..).zip(classes_in(folder)?) {
        if splits::are_splits_of_a_class(&class_names(&inner)?) {
            let reason = "the folders in this class are splits: put those of each split into a folder of its own, and what is to be held out under data.validation";
            return Err(refused(&inner, reason.to_owned()));
        }
        let before = images.len();
        let files = images_of(class, &inner, &mut passed)?;
        let count = files.len() as u64;
        images.extend((0..).zip(files).map(|(index, image)| (index, count, image)));
        if images.len() == before {
            let reason = format!(
                "a class without an image: give it some (.jpg, .jpeg or .png), or take the folder away; {passed}"
            );
            return Err(refused(&inner, reason));
        }
        if images.len() > IMAGES_MAX {
            let reason = format!("it has more than {IMAGES_MAX} images: pack them, as WebDataset does");
            return Err(refused(folder, reason));
        }
    }
    if images.is_empty() {
        let reason = format!("it has no folders, of which each is to have the images of a class; {passed}");
        return Err(refused(folder, reason));
    }
    // By the middle of the index-th of `count` equal parts, (2i + 1) / 2n, without dividing.
    images.sort_by(|(i, n, ..), (j, m, ..)| u64::cmp(&((2 * i + 1) * m), &((2 * j + 1) * n)));
    Ok((images.into_iter().map(|(.., image)| image).collect(), passed))
}

/// Returns the images of a class, by name, including subfolders.
fn images_of(class: u32, folder: &Path, passed: &mut PassedOver) -> Result<Vec<FolderImage>, DataError> {
    let mut images = Vec::new();
    let mut walk = WalkDir::new(folder).follow_links(true).sort_by_file_name().min_depth(1).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let path = error.path().unwrap_or(folder);
                match passed::reason_of(&error) {
                    Some(_) if is_hidden(path) => passed.add(Reason::Hidden, path),
                    Some(Reason::DanglingLink)
                        // A link to a folder may lead to images.
                        if path.extension().is_some()
                            && !has_ending(path, &ENDINGS)
                            && !has_ending(path, &OTHER_ENDINGS) =>
                    {
                        passed.add(Reason::NoImage, path)
                    }
                    Some(reason) => passed.add(reason, path),
                    None => {}
                }
                continue;
            }
        };
        let (path, kind) = (entry.path(), entry.file_type());
        if is_hidden(path) {
            passed.add(Reason::Hidden, path);
            if kind.is_dir() {
                walk.skip_current_dir();
            }
        } else if passed::is_folder_above(&entry, folder) {
            passed.add(Reason::FolderAbove, path);
            walk.skip_current_dir();
        } else if kind.is_dir() {
            // The walk continues with its content.
        } else if !kind.is_file() {
            passed.add(Reason::NoFile, path);
        } else if has_ending(path, &ENDINGS) {
            let metadata = match std::fs::metadata(path) {
                // A file removed meanwhile counts as removed before the listing.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => found.map_err(DataError::io("read", path))?,
            };
            let name = path.strip_prefix(folder).unwrap_or(path).to_owned();
            let (path, Seen { state, changed }) = (path.to_owned(), Seen::from(&metadata));
            images.push(FolderImage { class, name, path, state, changed });
        } else {
            let is_other = has_ending(path, &OTHER_ENDINGS) || is_image(path);
            passed.add(if is_other { Reason::OtherImage } else { no_image(path) }, path);
        }
    }
    Ok(images)
}

/// Checks that a folder has as many classes as the run.
///
/// # Errors
/// It does not.
pub(super) fn check_classes(folder: &Path, classes: u64) -> Result<(), DataError> {
    let there = classes_in(folder)?.len() as u64;
    // Fewer classes are refused as well: a missing one would shift the later classes against other sources.
    if there != classes {
        let reason = format!(
            "it has {}, and data.image.classes = {classes}: a class is the place of its folder among the names of all, so each source has as many; say data.image.classes = {there} if that is all of them",
            counted(there, "folder")
        );
        return Err(DataError::Folder { path: folder.to_owned(), reason });
    }
    Ok(())
}

/// Returns metadata that changes when an image is added, removed or written.
pub(super) fn seen(folder: &Path) -> Result<Seen, DataError> {
    Ok(seen_of(&images_in(folder)?))
}

/// The same for listed images.
pub(super) fn seen_of(images: &[FolderImage]) -> Seen {
    let (mut newest, mut hasher) = (i64::MIN, blake3::Hasher::new());
    for FolderImage { changed: Changed { s, ns }, .. } in images {
        newest = newest.max(*s);
        [s, ns].into_iter().for_each(|number| _ = hasher.update(&number.to_le_bytes()));
    }
    // A hash of all takes the place of the fraction.
    Seen {
        state: state_of(images),
        changed: Changed { s: newest, ns: i64::from_le_bytes(number_of(&hasher)) },
    }
}

/// Returns its state alone.
pub(super) fn state_of(images: &[FolderImage]) -> FileState {
    let (mut bytes, mut newest, mut hasher) = (0, (i64::MIN, 0), blake3::Hasher::new());
    for FolderImage { class, name, state, .. } in images {
        let time = (state.modified_s, state.modified_ns);
        bytes += state.bytes;
        newest = newest.max(time);
        let name = name.as_os_str().as_encoded_bytes();
        hasher.update(&class.to_le_bytes());
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        for number in [state.bytes as i64, time.0, time.1, state.inode as i64] {
            hasher.update(&number.to_le_bytes());
        }
    }
    // A hash of all names, times and inodes takes the place of the inode.
    let inode = u64::from_le_bytes(number_of(&hasher));
    FileState { bytes, modified_s: newest.0, modified_ns: newest.1, inode }
}

fn number_of(hasher: &blake3::Hasher) -> [u8; 8] {
    let mut number = [0; 8];
    hasher.finalize_xof().fill(&mut number);
    number
}

/// Returns the identity of a folder's samples before any image is read: the number of images and, in order, the class and size of each.
pub(super) fn identity(images: &[FolderImage]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(images.len() as u64).to_le_bytes());
    for image in images {
        hasher.update(&image.class.to_le_bytes());
        hasher.update(&image.state.bytes.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Reads an image, and checks before and after that it is unchanged since the listing.
///
/// # Errors
/// It has changed, or cannot be read.
pub(super) fn read_image(image: &FolderImage) -> Result<RawImage, DataError> {
    let FolderImage { class, path, state, .. } = image;
    let changed = || DataError::Changed { path: path.clone() };
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(changed()),
        file => file.map_err(DataError::io("open", path))?,
    };
    let is_as_listed = |file: &File| {
        let metadata = file.metadata().map_err(DataError::io("read", path))?;
        if FileState::from(&metadata) == *state { Ok(()) } else { Err(changed()) }
    };
    is_as_listed(&file)?;
    let content = if state.bytes > RECORD_BYTES_MAX {
        Pixels::TooLarge { bytes: state.bytes, digest: hash_of_file(path)?.0 }
    } else {
        let mut bytes = Vec::with_capacity(state.bytes as usize + 1);
        (&mut file).take(state.bytes + 1).read_to_end(&mut bytes).map_err(DataError::io("read", path))?;
        Pixels::Encoded(bytes)
    };
    is_as_listed(&file)?;
    Ok(RawImage { place: path.display().to_string(), class: *class, content })
}

/// Returns the BLAKE3 of all images, in hexadecimal.
pub(super) fn hash(folder: &Path, work: &mut FileWork<'_>) -> Result<String, DataError> {
    let (mut hasher, mut hashed) = (blake3::Hasher::new(), 0);
    for images in images_in(folder)?.chunks(HASHED_TOGETHER) {
        work.work.goes_on()?;
        let of_each = images.par_iter().map(|image| hash_of_file(&image.path));
        let of_each = of_each.collect::<Result<Vec<_>, DataError>>()?;
        for (image, (hash, bytes)) in images.iter().zip(of_each) {
            name_into(&mut hasher, image, &hash);
            hashed += bytes;
        }
        work.has_hashed(hashed);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Adds an image to the hash of a folder.
pub(super) fn name_into(hasher: &mut blake3::Hasher, image: &FolderImage, digest: &blake3::Hash) {
    hasher.update(&image.class.to_le_bytes());
    hasher.update(digest.as_bytes());
}

/// Returns the BLAKE3 of a file, and its bytes.
pub(super) fn hash_of_file(path: &Path) -> Result<(blake3::Hash, u64), DataError> {
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&file).map_err(DataError::io("read", path))?;
    Ok((hasher.finalize(), hasher.count()))
}

/// Returns the reason for leaving out a file that is no image.
fn no_image(path: &Path) -> Reason {
    if has_ending(path, &TABLE_ENDINGS) { Reason::ImageTable } else { Reason::NoImage }
}

/// Whether a file begins like an image of a common format, regardless of its name.
fn is_image(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(content::HEAD_BYTES as u64).read_to_end(&mut head));
    read.is_ok() && content::is_image(&head)
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let end = path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
    end.is_some_and(|end| endings.contains(&end.as_str()))
}

/// Returns the entries of a folder, by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let read = std::fs::read_dir(folder).map_err(DataError::io("open", folder))?;
    let entries = read.map(|entry| entry.map(|entry| entry.path()).map_err(DataError::io("open", folder)));
    let mut entries: Vec<_> = entries.collect::<Result<_, _>>()?;
    entries.sort_unstable();
    Ok(entries)
}
