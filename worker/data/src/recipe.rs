//! How the files of a source become tokens or images.

use std::path::Path;

use longhaul_common::config::{Column, DataConfig, DataFormat, DataSource, Dialect, ImageConfig};

use super::Tokenizer;
use super::image::sample_bytes;

/// Vocabularies up to this size take two bytes a token.
pub(super) const NARROW_VOCABULARY_MAX: u32 = 1 << 16;

/// Bytes of text or of images in a piece: small enough that a damaged one is quickly made again and that many are made at once in
/// memory, large enough that a large source has few files.
pub(super) const PIECE_BYTES: u64 = 16 << 20;

/// Everything beside a file's bytes that decides which tokens or images it becomes, and how they are cut into shards.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) format: DataFormat,
    /// Whether the configuration says so; else the file's name does.
    pub(super) is_said: bool,
    /// Of JSON, and whether the configuration says so.
    pub(super) field: String,
    pub(super) has_field: bool,
    /// Of tables.
    pub(super) column: Column,
    /// Of CSV and TSV.
    pub(super) dialect: Dialect,
    /// After each record, or after a file of plain text that a pattern names; of other files nothing.
    pub(super) separator: String,
    /// What images become.
    pub(super) image: Option<ImageConfig>,
    /// One more than the largest token.
    pub(super) vocabulary: u32,
    /// Bytes of text or of images in a piece, until a record ends.
    pub(super) piece_bytes: u64,
    pub(super) tokenizer: Tokenizer,
    tokenizer_hash: blake3::Hash,
}

/// Values as RFC 4180 has them.
const PLAIN: Dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };

/// Part of every name in the cache: what is prepared in another way, or kept in another layout, has other names. Each format has a version of its own, so that a change of one leaves what the others have.
const fn preparation_version(format: DataFormat) -> u32 {
    match format {
        DataFormat::Parquet | DataFormat::Arrow | DataFormat::TokensU32 => 2,
        DataFormat::Idx | DataFormat::Images | DataFormat::TokensU16 => 3,
        DataFormat::Text | DataFormat::Jsonl => 4,
        DataFormat::Csv | DataFormat::Tsv => 5,
        DataFormat::Webdataset => 7,
    }
}

/// Bytes of an image of this shape with its class, or of a token of this vocabulary.
pub(super) fn item_bytes(image: Option<&ImageConfig>, vocabulary: u32) -> usize {
    match image {
        Some(shape) => sample_bytes(shape),
        None if vocabulary <= NARROW_VOCABULARY_MAX => 2,
        None => 4,
    }
}

impl Recipe {
    pub(super) fn new(
        source: &DataSource,
        config: &DataConfig,
        tokenizer: &Tokenizer,
        piece_bytes: u64,
    ) -> Self {
        let text = || DataSource::TEXT.to_owned();
        let format = source.format();
        let field = if format.is_of_images() { DataSource::LABEL } else { DataSource::TEXT };
        Self {
            format,
            is_said: source.format.is_some(),
            field: source.field.clone().unwrap_or_else(|| field.to_owned()),
            has_field: source.field.is_some(),
            column: source.column.clone().unwrap_or_else(|| Column::Name(text())),
            // One that makes no sense was refused with the configuration.
            dialect: source.dialect().unwrap_or(PLAIN),
            separator: if source.has_separators() { config.separator.clone() } else { String::new() },
            image: config.image.clone(),
            vocabulary: tokenizer.vocabulary(),
            piece_bytes,
            tokenizer: tokenizer.clone(),
            tokenizer_hash: tokenizer.hash(),
        }
    }

    /// Of tokens that are bytes, and everything else as it is where nothing is said of it.
    #[cfg(any(test, fuzzing, feature = "fuzz"))]
    pub(super) fn plain(format: DataFormat) -> Self {
        Self {
            format,
            is_said: true,
            field: if format.is_of_images() { DataSource::LABEL } else { DataSource::TEXT }.to_owned(),
            has_field: false,
            column: Column::Name(DataSource::TEXT.to_owned()),
            dialect: Dialect { delimiter: if format == DataFormat::Tsv { b'\t' } else { b',' }, ..PLAIN },
            separator: "\n".to_owned(),
            image: None,
            vocabulary: Tokenizer::Bytes.vocabulary(),
            piece_bytes: PIECE_BYTES,
            tokenizer: Tokenizer::Bytes,
            tokenizer_hash: Tokenizer::Bytes.hash(),
        }
    }

    /// Bytes of what a shard has one after the other: a token, or an image with its class.
    pub(super) fn item_bytes(&self) -> usize {
        item_bytes(self.image.as_ref(), self.vocabulary)
    }

    /// Classes of images; of texts none.
    pub(super) fn classes(&self) -> u64 {
        self.image.as_ref().map_or(0, |shape| shape.classes.into())
    }

    /// Names what is made from the bytes of a file called so: what its name ends with may decide whether it is decompressed.
    pub(super) fn hash(&self, file: &Path) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let end = file.extension().unwrap_or_default().to_ascii_lowercase();
        for part in [self.to_string().as_bytes(), end.as_encoded_bytes(), self.tokenizer_hash.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&self.piece_bytes.to_le_bytes());
        hasher.update(&preparation_version(self.format).to_le_bytes());
        hasher.finalize()
    }

    /// What decides which records a file has beside what [`Self::hash`] names. It is part of a list's name and of no shard's: where it changes, files are read anew, and shards of the same
    /// records are found. Nothing: as in all versions so far.
    pub(super) fn reading(&self) -> String {
        match self.format {
            DataFormat::Text => {
                // Earlier versions cut at lines, whatever became of the tokens there.
                let cuts = match self.tokenizer {
                    Tokenizer::Bytes => "",
                    Tokenizer::Json { .. } => "cut where no token changes",
                };
                match self.separator.as_str() {
                    "" => cuts.to_owned(),
                    separator => format!("separator {separator:?} behind the file{cuts}"),
                }
            }
            DataFormat::Jsonl => "numbers beyond a double".to_owned(),
            DataFormat::Csv | DataFormat::Tsv => "no line for Excel".to_owned(),
            DataFormat::Webdataset => {
                let decides = if self.has_field { ", the field decides" } else { "" };
                format!("a name once, a text of one class, all classes in order{decides}")
            }
            DataFormat::Idx => "all classes in order".to_owned(),
            DataFormat::TokensU16 if !self.is_said => "marks of other formats, and no floats".to_owned(),
            DataFormat::TokensU16 | DataFormat::TokensU32 => "no marks of other formats".to_owned(),
            _ => String::new(),
        }
    }
}

/// Only what decides the tokens of a record: a separator behind a file of text is part of its last one.
impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, column, dialect, separator, .. } = self;
        match self.format {
            DataFormat::Text if self.is_said => write!(f, "text, whatever it is"),
            DataFormat::Text => write!(f, "text"),
            DataFormat::TokensU16 if self.is_said => write!(f, "tokens-u16 below {}", self.vocabulary),
            DataFormat::TokensU16 => write!(f, "tokens-u16 by their name, below {}", self.vocabulary),
            DataFormat::TokensU32 => write!(f, "tokens-u32 below {}", self.vocabulary),
            DataFormat::Jsonl => write!(f, "jsonl, field {field:?}, separator {separator:?}"),
            DataFormat::Csv => write!(f, "csv, column {column}, {dialect}, separator {separator:?}"),
            DataFormat::Tsv => write!(f, "tsv, column {column}, {dialect}, separator {separator:?}"),
            DataFormat::Parquet => write!(f, "parquet, column {column}, separator {separator:?}"),
            DataFormat::Arrow => write!(f, "arrow, column {column}, separator {separator:?}"),
            DataFormat::Idx => write!(f, "idx, {}", Shape(self)),
            DataFormat::Images => write!(f, "images, {}", Shape(self)),
            DataFormat::Webdataset => write!(f, "webdataset, field {field:?}, {}", Shape(self)),
        }
    }
}

/// What images are made into. What is random is not prepared, and so not told.
struct Shape<'a>(&'a Recipe);

impl std::fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(ImageConfig { channels, height, width, classes, .. }) = &self.0.image else { return Ok(()) };
        write!(f, "{channels} × {height} × {width}, below class {classes}")
    }
}
