//! Records of a file in order, each with its place.

mod class_field;
pub(crate) mod content;
mod cuts;
mod delimited;
mod delimiters;
mod elements;
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
mod json_objects;
mod kinds;
mod known;
mod labels;
mod no_tokens;
mod objects;
mod pickles;
mod prose;
mod record_reader;
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
mod watched;
mod web_dataset;
pub(crate) mod whole_rows;
mod width;

use std::path::Path;

use longhaul_common::config::DataFormat;

use self::delimited::Delimited;
use self::idx::Idx;
use self::image_folder::ImageFolder;
use self::input::{Input, Told};
pub(super) use self::input::{MARK, is_packed_by_name};
use self::json_lines::JsonLines;
use self::json_objects::JsonObjects;
pub(super) use self::kinds::by_name;
use self::record_reader::RecordReader;
use self::text::TextChunks;
pub(super) use self::text_names::is_source_code;
use self::tokens::Tokens;
use self::web_dataset::WebDataset;
use super::cache::Cache;
use super::chat::Conversation;
use super::image::RawImage;
use super::labelled::LabelledText;
use super::notes::Notes;
use super::origin::Origin;
use super::{DataError, Recipe};

/// The next item of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A text, with its separator.
    Text(String),
    /// The continuation of a text: its tokens are those added after `before`, which the preceding record has.
    Continued { before: String, text: String },
    /// Existing tokens.
    Tokens(Vec<u32>),
    /// An image, not yet decoded.
    Image(RawImage),
    /// A conversation, not yet tokenised, and its place for messages.
    Conversation { conversation: Conversation, place: String },
    /// A labelled text, not yet tokenised, and its place for messages.
    Labelled { text: LabelledText, place: String },
    /// An unreadable record: its place and cause, and the number of records that it counts for.
    Bad { reason: String, count: u64 },
}

impl Record {
    /// Returns a single bad record.
    pub(super) fn bad(reason: String) -> Self {
        Self::Bad { reason, count: 1 }
    }

    /// Returns the text before it, and its text.
    pub(super) fn as_text(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => Some(("", text)),
            Self::Continued { before, text } => Some((before, text)),
            _ => None,
        }
    }

    /// Returns its bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) | Self::Continued { text, .. } | Self::Bad { reason: text, .. } => {
                text.len() as u64
            }
            Self::Tokens(tokens) => size_of_val(tokens.as_slice()) as u64,
            Self::Image(image) => image.read_bytes(),
            Self::Conversation { conversation, .. } => conversation.bytes(),
            Self::Labelled { text, .. } => text.bytes(),
        }
    }
}

/// The records of a file.
pub(super) trait Records {
    /// Returns the next one; `None` at the end.
    fn next_record(&mut self) -> Result<Option<Record>, DataError>;

    /// Returns the bytes of the file read so far.
    fn read_bytes(&self) -> u64;

    /// The same for its decompressed content, if the reader knows.
    fn content_bytes(&self) -> u64 {
        self.read_bytes()
    }

    /// Takes the notes on the records since the last call.
    fn take_notes(&mut self) -> Notes {
        Notes::default()
    }
}

/// Opens a file of a source.
pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Box<dyn Records>, DataError> {
    open_by(file, recipe, || tables::open(file, recipe, cache))
}

/// Opens a local file.
pub(super) fn open_local(path: &Path, recipe: &Recipe) -> Result<Box<dyn Records>, DataError> {
    open_by(&Origin::Local(path.to_owned()), recipe, || tables::open_local(path, recipe))
}

/// Opens a file; `table` opens one of Parquet or Arrow.
fn open_by(
    file: &Origin,
    recipe: &Recipe,
    table: impl FnOnce() -> Result<Box<dyn Records>, DataError>,
) -> Result<Box<dyn Records>, DataError> {
    let input = || input_of(file, recipe);
    Ok(match recipe.format {
        DataFormat::Text => Box::new(TextChunks::new(input()?, recipe)),
        DataFormat::Jsonl => match RecordReader::of(recipe, file.path()) {
            Some(reader) => Box::new(JsonObjects::new(input()?, reader)?),
            None => Box::new(JsonLines::new(input()?, recipe)),
        },
        DataFormat::Csv | DataFormat::Tsv => Box::new(Delimited::new(input()?, recipe)?),
        DataFormat::Parquet | DataFormat::Arrow => return table(),
        DataFormat::TokensU16 if recipe.is_said => Box::new(Tokens::new(input()?, 2, recipe.vocabulary)),
        DataFormat::TokensU16 => Box::new(Tokens::by_name(input()?, recipe.vocabulary)),
        DataFormat::TokensU32 => Box::new(Tokens::new(input()?, 4, recipe.vocabulary)),
        DataFormat::Idx => {
            // A file without labels is refused with the configuration.
            let labels = if let Origin::Labelled { labels, .. } = file { labels } else { file };
            Box::new(Idx::new(input()?, input_of(labels, recipe)?)?)
        }
        DataFormat::Images => Box::new(ImageFolder::new(file.path(), recipe)?),
        DataFormat::Webdataset => Box::new(WebDataset::new(input()?, recipe)),
    })
}

/// Checks the start of a file that was never hashed, and so never prepared, against its format. Other files and remote ones are checked when they
/// are read.
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

/// Whether a local file is compressed and empty.
pub(super) fn is_packed_nothing(path: &Path, format: DataFormat) -> bool {
    Input::look(path, told(format)).is_ok_and(Input::has_packed_nothing)
}

fn told(format: DataFormat) -> Told {
    match format {
        DataFormat::TokensU16 | DataFormat::TokensU32 => Told::ByName,
        // Tables are compressed internally.
        DataFormat::Parquet | DataFormat::Arrow => Told::Never,
        _ => Told::ByContent,
    }
}
