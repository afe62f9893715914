//! Recipes for turning the files of a source into tokens or images.

use std::path::Path;
use std::sync::Arc;

use longhaul_common::config::{Column, DataConfig, DataFormat, DataSource, Dialect, ImageConfig};

use super::chat::Chat;
use super::control_tokens::ControlTokens;
use super::image::sample_bytes;
use super::labelled::Labelling;
use super::{DataError, Tokenizer};

/// Largest vocabulary stored with two bytes per token.
pub(super) const NARROW_VOCABULARY_MAX: u32 = 1 << 16;

/// Bytes of text or images in a piece: small enough for a quick rebuild and for many in memory at once, large enough that a large source has
/// few files.
pub(super) const PIECE_BYTES: u64 = 16 << 20;

/// All inputs besides a file's bytes that determine its tokens or images and their shards.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) format: DataFormat,
    /// Whether the configuration sets the format; otherwise the file's name does.
    pub(super) is_said: bool,
    /// For JSON: the field, and whether the configuration sets it.
    pub(super) field: String,
    pub(super) has_field: bool,
    /// For tables.
    pub(super) column: Column,
    /// For CSV and TSV.
    pub(super) dialect: Dialect,
    /// Separator after each record, or after each plain text of a pattern; empty for other files.
    pub(super) separator: String,
    /// Shape of image samples.
    pub(super) image: Option<ImageConfig>,
    /// For conversations.
    pub(super) chat: Option<Arc<Chat>>,
    /// For labelled texts.
    pub(super) labelling: Option<Arc<Labelling>>,
    /// Largest token plus one.
    pub(super) vocabulary: u32,
    /// Bytes of text or images in a piece, up to the end of a record.
    pub(super) piece_bytes: u64,
    pub(super) tokenizer: Tokenizer,
    /// Of that tokenizer and of others.
    pub(super) control_tokens: Arc<ControlTokens>,
    tokenizer_hash: blake3::Hash,
}

/// The dialect of RFC 4180.
const PLAIN: Dialect = Dialect { delimiter: b',', quote: Some(b'"'), escape: None };

/// Version in every name in the cache: a change of the preparation or of the layout gives new names. Each format has its own version, so that a
/// change of one keeps the data of the others.
const fn preparation_version(format: DataFormat) -> u32 {
    match format {
        DataFormat::Parquet | DataFormat::Arrow | DataFormat::TokensU32 => 2,
        DataFormat::TokensU16 => 3,
        DataFormat::Idx | DataFormat::Images | DataFormat::Text | DataFormat::Jsonl => 4,
        DataFormat::Csv | DataFormat::Tsv => 5,
        DataFormat::Webdataset => 8,
    }
}

/// Returns the bytes of an image of this shape with its class, or of a token of this vocabulary.
pub(super) fn item_bytes(image: Option<&ImageConfig>, vocabulary: u32) -> usize {
    match image {
        Some(shape) => sample_bytes(shape),
        None if vocabulary <= NARROW_VOCABULARY_MAX => 2,
        None => 4,
    }
}

impl Recipe {
    /// Describes the preparation of a source.
    ///
    /// # Errors
    /// The chat template cannot be used.
    pub(super) fn new(
        source: &DataSource,
        config: &DataConfig,
        tokenizer: &Tokenizer,
        piece_bytes: u64,
    ) -> Result<Self, DataError> {
        let text = || DataSource::TEXT.to_owned();
        let format = source.format();
        let chat = Chat::of(source, config, tokenizer)?;
        let field = if format.is_of_images() { DataSource::LABEL } else { DataSource::TEXT };
        let labelling = Labelling::of(config);
        let text_column = labelling.as_ref().map(|labelling| labelling.text.clone());
        let has_separator = source.has_separators() && labelling.is_none();
        let separator = if has_separator { config.separator().to_owned() } else { String::new() };
        Ok(Self {
            format,
            is_said: source.format.is_some(),
            field: source.field.clone().unwrap_or_else(|| field.to_owned()),
            has_field: source.field.is_some(),
            column: text_column.or(source.column.clone()).unwrap_or_else(|| Column::Name(text())),
            // An invalid dialect was refused with the configuration.
            dialect: source.dialect().unwrap_or(PLAIN),
            control_tokens: Arc::new(ControlTokens::of(tokenizer, &separator)),
            separator,
            image: config.image.clone(),
            chat: chat.map(Arc::new),
            labelling: labelling.map(Arc::new),
            vocabulary: tokenizer.vocabulary(),
            piece_bytes,
            tokenizer: tokenizer.clone(),
            tokenizer_hash: tokenizer.hash(),
        })
    }

    /// Returns a recipe for reading labelled texts, and not for their tokens.
    pub(super) fn of_labelled(format: DataFormat, labelling: &Labelling) -> Self {
        let (column, labelling) = (labelling.text.clone(), Some(Arc::new(labelling.clone())));
        Self { column, labelling, separator: String::new(), ..Self::plain(format) }
    }

    /// Returns a recipe with byte tokens and defaults for the rest.
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
            chat: None,
            labelling: None,
            vocabulary: Tokenizer::Bytes.vocabulary(),
            piece_bytes: PIECE_BYTES,
            tokenizer: Tokenizer::Bytes,
            control_tokens: Arc::default(),
            tokenizer_hash: Tokenizer::Bytes.hash(),
        }
    }

    /// Returns the bytes of a shard's item: a token, an image with its class, or a row of conversations or of a labelled text.
    pub(super) fn item_bytes(&self) -> usize {
        match (&self.chat, &self.labelling) {
            (Some(chat), _) => chat.row_bytes(),
            (None, Some(labelling)) => labelling.row_bytes(),
            (None, None) => item_bytes(self.image.as_ref(), self.vocabulary),
        }
    }

    /// Returns the number of classes of images or labelled texts; 0 for other texts.
    pub(super) fn classes(&self) -> u64 {
        let of_texts = self.labelling.as_ref().map_or(0, |labelling| labelling.classes());
        self.image.as_ref().map_or(of_texts, |shape| shape.classes.into())
    }

    /// Returns the identity of the recipe for a file of this name, whose extension may select decompression.
    pub(super) fn hash(&self, file: &Path) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        let end = file.extension().unwrap_or_default().to_ascii_lowercase();
        for part in [self.to_string().as_bytes(), end.as_encoded_bytes(), self.tokenizer_hash.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&self.piece_bytes.to_le_bytes());
        hasher.update(&preparation_version(self.format).to_le_bytes());
        // Earlier versions left the separator out behind some tokens.
        if self.tokenizer.may_take(&self.separator) {
            hasher.update(b"a separator behind each token");
        }
        hasher.finalize()
    }

    /// Returns the version of reading: inputs that determine a file's records beyond [`Self::hash`]. It is part of the names of lists, not of shards: after a
    /// change, files are read anew, and shards of equal records are found. Empty: unchanged since the first version.
    pub(super) fn reading(&self) -> String {
        match self.format {
            DataFormat::Text => {
                // Earlier versions cut at lines regardless of the tokens there.
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
                let decides = if self.has_field { "the named field alone" } else { "texts of numbers" };
                format!("a name once, a text of one class, all classes in order, keys alone, {decides}")
            }
            DataFormat::Idx => "all classes in order".to_owned(),
            DataFormat::TokensU16 if !self.is_said => "marks of other formats, and no floats".to_owned(),
            DataFormat::TokensU16 | DataFormat::TokensU32 => "no marks of other formats".to_owned(),
            _ => String::new(),
        }
    }
}

/// Shows only the inputs that determine a record's tokens: the separator after a text file is part of its last record.
impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, column, dialect, separator, .. } = self;
        if let Some(chat) = &self.chat {
            return write!(f, "{:?}, {chat}", self.format);
        }
        if let Some(labelling) = &self.labelling {
            return write!(f, "{:?}, {dialect}, {labelling}", self.format);
        }
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

/// The prepared shape of images. Augmentation happens later and is not shown.
struct Shape<'a>(&'a Recipe);

impl std::fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(ImageConfig { channels, height, width, classes, .. }) = &self.0.image else { return Ok(()) };
        write!(f, "{channels} × {height} × {width}, below class {classes}")
    }
}
