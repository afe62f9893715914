//! A folder of images, which has a folder for each class.

use std::path::{Path, PathBuf};

use super::{RECORD_BYTES_MAX, Record, Records};
use crate::data::folder::{classes_in, images_in};
use crate::data::image::{Pixels, RawImage};
use crate::data::{DataError, Recipe};

/// Its images, in the order of [`images_in`].
pub(super) struct ImageFolder {
    files: std::vec::IntoIter<(u32, PathBuf)>,
    read_bytes: u64,
}

impl ImageFolder {
    pub(super) fn new(folder: &Path, recipe: &Recipe) -> Result<Self, DataError> {
        let (there, classes) = (classes_in(folder)?.len() as u64, recipe.classes());
        let files = images_in(folder)?;
        // Fewer would do, were it not that one that is missing makes the classes behind it others than in another source.
        if there != classes {
            let reason = format!(
                "it has {there} folders, and data.image.classes = {classes}: a class is the place of its folder among the names of all, so each source has as many"
            );
            return Err(DataError::Folder { path: folder.to_owned(), reason });
        }
        Ok(Self { files: files.into_iter(), read_bytes: 0 })
    }
}

impl Records for ImageFolder {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let Some((class, path)) = self.files.next() else { return Ok(None) };
        let place = path.display().to_string();
        let size = std::fs::metadata(&path).map_err(DataError::io("open", &path))?.len();
        self.read_bytes += size;
        if size > RECORD_BYTES_MAX {
            return Ok(Some(Record::Bad(format!("{place}: it has more than {RECORD_BYTES_MAX} bytes"))));
        }
        let bytes = std::fs::read(&path).map_err(DataError::io("read", &path))?;
        Ok(Some(Record::Image(RawImage { place, class, content: Pixels::Encoded(bytes) })))
    }

    fn read_bytes(&self) -> u64 {
        self.read_bytes
    }
}
