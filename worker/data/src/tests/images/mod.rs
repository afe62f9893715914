//! Images are read as Pillow and numpy read them: `tests/fixtures/make_images.py`.

mod archives;
mod deep;
mod defects;
mod formats;
mod held_out;
mod meanwhile;
mod places;
mod stream;

use std::ops::Deref;

use super::*;
use crate::Content;

const RGB: &str = "image = { height = 16, width = 20, classes = 3 }";
const GREY: &str = "image = { channels = 1, height = 16, width = 20, classes = 3 }";
const IDX: &str = "image = { channels = 1, height = 9, width = 12, classes = 3 }";
const SMALL: &str = "image = { height = 4, width = 4, classes = 2 }";
const SHARDS: &str = "sources = [{ glob = \"shard-*.tar\" }]";
const FOLDER: &str = "sources = [{ path = \"folder\", format = \"images\" }]";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name)).unwrap()
}

/// Pixels and class.
type Image = (Vec<u8>, u32);
/// Images in the order in which they are stored.
type Images = Vec<Image>;

/// Opens the data at a path, prepared in pieces of a few images, in a separate cache.
fn open_at(place: &Path, cache: &Folder, lines: &str, work: &Work) -> Result<Dataset, DataError> {
    let lines = match lines.contains("validation") {
        true => lines.to_owned(),
        false => format!("validation_share = 0.0\n{lines}"),
    };
    let config = config(&lines).found_at(place);
    let cache = Cache::open(cache.path(), None).unwrap();
    let maker = Maker { cache: &cache, tokenizer: &Tokenizer::Bytes, work, piece_bytes: 4000 };
    Dataset::prepared_by(&config, maker)
}

/// Data and its cache.
#[derive(Debug)]
struct Opened {
    data: Dataset,
    _cache: Folder,
}

impl Deref for Opened {
    type Target = Dataset;

    fn deref(&self) -> &Dataset {
        &self.data
    }
}

fn open(place: &Path, lines: &str) -> Result<Opened, DataError> {
    let cache = Folder::new();
    open_at(place, &cache, lines, &Work::default()).map(|data| Opened { data, _cache: cache })
}

/// Returns the training samples at these positions, with their indices in the source.
fn samples(data: &Dataset, positions: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>, u32)> {
    let image = |position| {
        let sample = data.sample(position, 1).unwrap();
        match sample.content {
            Content::Image { pixels, class } => (sample.index, pixels, class),
            _ => panic!("images have no tokens"),
        }
    };
    positions.map(image).collect()
}

fn images(data: &Dataset) -> Images {
    let mut images = samples(data, 0..data.samples());
    images.sort();
    images.into_iter().map(|(_, pixels, class)| (pixels, class)).collect()
}

/// Returns an archive of these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.into_inner().unwrap()
}
