//! Which files a source has.

use std::path::Path;

use longhaul_common::config::{DataFormat, DataLabels, DataPlace, DataSource, DataUrl};

use super::DataError;
use super::built;
use super::cache::Cache;
use super::origin::Origin;
use super::remote::RemoteFile;

/// Files of a source, at most: each has a list, which is kept in memory.
pub(super) const FILES_MAX: usize = 1 << 16;

/// The files of a source, in the order of their names.
pub(super) fn files_of(source: &DataSource, cache: &Cache) -> Result<Vec<Origin>, DataError> {
    let pattern = match source.place() {
        DataPlace::Path(path) => {
            check_kind(path, source.format())?;
            return labelled(vec![Origin::Local(path.to_owned())], source, cache);
        }
        DataPlace::Url(url) => return labelled(found(url, source, cache)?, source, cache),
        DataPlace::Glob(pattern) => pattern,
    };
    let refused = |reason: String| DataError::Pattern { pattern: pattern.to_owned(), reason };
    let mut files = Vec::new();
    for found in glob::glob(pattern).map_err(|error| refused(error.to_string()))? {
        let path = found.map_err(|error| {
            let path = error.path().to_owned();
            DataError::io("open", &path)(error.into())
        })?;
        if path.is_file() {
            built::check_name(&path)?;
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(refused(format!("it matches more than {FILES_MAX} files")));
        }
    }
    files.sort_unstable();
    if files.is_empty() {
        return Err(refused("it matches no file".to_owned()));
    }
    Ok(files.into_iter().map(Origin::Local).collect())
}

/// The same with the labels of each, where the source has such.
fn labelled(files: Vec<Origin>, source: &DataSource, cache: &Cache) -> Result<Vec<Origin>, DataError> {
    let labels = match &source.labels {
        None => return Ok(files),
        Some(DataLabels::Path(path)) => vec![Origin::Local(path.clone())],
        Some(DataLabels::Url(url)) => found(url, source, cache)?,
    };
    let pair = |(images, labels)| Origin::Labelled { images: Box::new(images), labels: Box::new(labels) };
    Ok(files.into_iter().zip(labels).map(pair).collect())
}

fn found(url: &DataUrl, source: &DataSource, cache: &Cache) -> Result<Vec<Origin>, DataError> {
    let files = RemoteFile::find(url, source.endpoint.as_deref(), cache)?;
    Ok(files.into_iter().map(Origin::Remote).collect())
}

/// Folders are of images, and nothing else is; of what is not there, opening it tells.
fn check_kind(path: &Path, format: DataFormat) -> Result<(), DataError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let reason = match (metadata.is_dir(), format == DataFormat::Images) {
        (true, false) => {
            "it is a folder: take a glob for the files in it, as \"FOLDER/*.txt\", or, of images, format = \"images\""
        }
        (false, true) => {
            "it is no folder, and format = \"images\" is of one with a folder for each class: leave the format out, or name the folder"
        }
        _ => return Ok(()),
    };
    Err(DataError::Folder { path: path.to_owned(), reason: reason.to_owned() })
}
