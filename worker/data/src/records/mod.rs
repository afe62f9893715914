//! Records of a file, one after the other, each with its place.

mod content;
mod cuts;
mod delimited;
mod delimiters;
mod encoding;
mod faults;
mod fields;
mod floats;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub(crate) mod fuzz;
#[cfg(feature = "gzip")]
mod gzip;
#[cfg(not(feature = "gzip"))]
#[path = "no_gzip.rs"]
mod gzip;
mod head_like;
mod idx;
mod image_folder;
mod input;
mod json_lines;
mod kinds;
mod known;
mod no_tokens;
mod pickles;
mod prose;
mod remedies;
mod rows;
mod seen;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(not(feature = "parquet"))]
#[path = "no_tables.rs"]
mod tables;
mod tar;
mod text;
mod text_names;
mod tokens;
mod torn;
mod web_dataset;
mod width;

use std::path::Path;

use longhaul_common::config::DataFormat;

use self::delimited::Delimited;
use self::idx::Idx;
use self::image_folder::ImageFolder;
use self::input::{Input, Told};
pub(super) use self::input::{MARK, is_packed_by_name};
use self::json_lines::JsonLines;
pub(super) use self::kinds::by_name;
use self::text::TextChunks;
pub(super) use self::text_names::is_source_code;
use self::tokens::Tokens;
use self::web_dataset::WebDataset;
use super::cache::Cache;
use super::image::RawImage;
use super::notes::Notes;
use super::origin::Origin;
use super::{DataError, Recipe};

/// What comes next in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A text, with whatever stands between it and the next.
    Text(String),
    /// A text that goes on: its tokens are those that it adds to what stands before it, which the record ahead has.
    Continued { before: String, text: String },
    /// Tokens, made elsewhere.
    Tokens(Vec<u32>),
    /// An image, not yet decoded.
    Image(RawImage),
    /// Something that is no record: its place and what is wrong with it, and how many records it counts for.
    Bad { reason: String, count: u64 },
}

impl Record {
    /// One bad record.
    pub(super) fn bad(reason: String) -> Self {
        Self::Bad { reason, count: 1 }
    }

    /// Its text, behind what stands before it.
    pub(super) fn as_text(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => Some(("", text)),
            Self::Continued { before, text } => Some((before, text)),
            _ => None,
        }
    }

    /// What it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) | Self::Continued { text, .. } | Self::Bad { reason: text, .. } => {
                text.len() as u64
            }
            Self::Tokens(tokens) => size_of_val(tokens.as_slice()) as u64,
            Self::Image(image) => image.read_bytes(),
        }
    }
}

/// The records of a file.
pub(super) trait Records {
    /// The next one; none at the end.
    fn next_record(&mut self) -> Result<Option<Record>, DataError>;

    /// Bytes of the file that were read so far.
    fn read_bytes(&self) -> u64;

    /// The same of its content, as it is unpacked, where the reader can tell.
    fn content_bytes(&self) -> u64 {
        self.read_bytes()
    }

    /// What is told of the records since this was asked for last.
    fn take_notes(&mut self) -> Notes {
        Notes::default()
    }
}

/// Opens a file of a source.
pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Box<dyn Records>, DataError> {
    let input = || input_of(file, recipe);
    Ok(match recipe.format {
        DataFormat::Text => Box::new(TextChunks::new(input()?, recipe)),
        DataFormat::Jsonl => Box::new(JsonLines::new(input()?, recipe)),
        DataFormat::Csv | DataFormat::Tsv => Box::new(Delimited::new(input()?, recipe)?),
        DataFormat::Parquet | DataFormat::Arrow => return tables::open(file, recipe, cache),
        DataFormat::TokensU16 if recipe.is_said => Box::new(Tokens::new(input()?, 2, recipe.vocabulary)),
        DataFormat::TokensU16 => Box::new(Tokens::by_name(input()?, recipe.vocabulary)),
        DataFormat::TokensU32 => Box::new(Tokens::new(input()?, 4, recipe.vocabulary)),
        DataFormat::Idx => {
            // One without labels is refused where the configuration is read.
            let labels = if let Origin::Labelled { labels, .. } = file { labels } else { file };
            Box::new(Idx::new(input()?, input_of(labels, recipe)?)?)
        }
        DataFormat::Images => Box::new(ImageFolder::new(file.path(), recipe)?),
        DataFormat::Webdataset => Box::new(WebDataset::new(input()?, recipe)),
    })
}

/// Looks at the beginning of a file that was never hashed, and so never prepared, whether it is what it is read as. Of others, and of those that are elsewhere, whoever reads them does.
pub(super) fn check_unknown(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<(), DataError> {
    if file.known_hash(cache)?.is_some() { Ok(()) } else { check_beginning(file, recipe) }
}

fn check_beginning(file: &Origin, recipe: &Recipe) -> Result<(), DataError> {
    match file {
        // A folder.
        Origin::Local(_) if recipe.format == DataFormat::Images => Ok(()),
        Origin::Local(path) => Input::look(path, told(recipe.format))?.checked(recipe).map(drop),
        Origin::Remote(_) => Ok(()),
        Origin::Labelled { images, labels } => {
            check_beginning(images, recipe)?;
            check_beginning(labels, recipe)
        }
    }
}

fn input_of(file: &Origin, recipe: &Recipe) -> Result<Input, DataError> {
    match file {
        Origin::Local(path) => Input::open(path, told(recipe.format))?.checked(recipe),
        Origin::Remote(remote) => Input::remote(remote, told(recipe.format))?.checked(recipe),
        Origin::Labelled { images, .. } => input_of(images, recipe),
    }
}

/// Whether a file on this machine is packed, and there is nothing in it.
pub(super) fn is_packed_nothing(path: &Path, format: DataFormat) -> bool {
    Input::look(path, told(format)).is_ok_and(Input::has_packed_nothing)
}

fn told(format: DataFormat) -> Told {
    match format {
        DataFormat::TokensU16 | DataFormat::TokensU32 => Told::ByName,
        // A table has its own packing within.
        DataFormat::Parquet | DataFormat::Arrow => Told::Never,
        _ => Told::ByContent,
    }
}
