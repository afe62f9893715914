//! A folder of images with a subfolder per class.

use std::path::Path;

use super::{Record, Records};
use crate::folder::{FolderImage, check_classes, images_in, read_image};
use crate::{DataError, Recipe};

/// Its images, in the order of [`images_in`].
pub(super) struct ImageFolder {
    files: std::vec::IntoIter<FolderImage>,
    read_bytes: u64,
}

impl ImageFolder {
    pub(super) fn new(folder: &Path, recipe: &Recipe) -> Result<Self, DataError> {
        let files = images_in(folder)?;
        check_classes(folder, recipe.classes())?;
        Ok(Self { files: files.into_iter(), read_bytes: 0 })
    }
}

impl Records for ImageFolder {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let Some(image) = self.files.next() else { return Ok(None) };
        self.read_bytes += image.state.bytes;
        read_image(&image).map(|image| Some(Record::Image(image)))
    }

    fn read_bytes(&self) -> u64 {
        self.read_bytes
    }
}
