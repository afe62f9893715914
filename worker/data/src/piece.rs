//! Pieces of a file, each tokenised or decoded, kept and rebuilt on its own.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use longhaul_common::config::{DataFormat, ImageConfig};
use longhaul_proto::little_endian::extend_with_tokens;
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::chat::Conversation;
use super::image::{RawImage, black, class_of, decode, sample_bytes, stand_in};
use super::labelled::LabelledText;
use super::notes::{Note, Notes};
use super::odd_texts::OddTexts;
use super::origin::Origin;
use super::prepared::Maker;
use super::records::{self, Record, Records};
use super::tokenizer::UnknownText;
use super::{DataError, Recipe, Work, decoders};

/// Weight of a record beside its text, so that a piece of empty records also ends.
const RECORD_BYTES: u64 = 8;
/// Images decoded in parallel between two checks for a stop.
const DECODED_TOGETHER: usize = 64;
/// Bad records of a piece that are kept with their places; the rest is only counted.
pub(super) const EXAMPLES_MAX: usize = 8;

/// Characters of a text shown in a notice.
const SHOWN_CHARACTERS: usize = 40;

/// Records read, but not yet tokenised or decoded.
#[derive(Debug, Default)]
pub(super) struct Piece {
    records: Vec<Record>,
    pub(super) bad: BadRecords,
    /// Notes of its reader.
    pub(super) notes: Notes,
}

/// Images of each class.
pub(super) type Classes = BTreeMap<u32, u64>;

/// Counts the images of each class.
pub(super) fn classes_of(labels: &[u32]) -> Classes {
    let mut classes = Classes::new();
    labels.iter().for_each(|class| *classes.entry(*class).or_default() += 1);
    classes
}

/// The decoded images of a piece.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    /// One sample per image in order, each with its class.
    pub(super) samples: Vec<u8>,
    /// The class of each.
    pub(super) labels: Vec<u32>,
    /// Images that could not be decoded; stand-ins take their places.
    pub(super) bad: BadRecords,
}

/// The tokens of a piece's texts.
#[derive(Debug, Default)]
pub(super) struct PieceTokens {
    /// Little-endian, with the recipe's bytes per token.
    pub(super) bytes: Vec<u8>,
    pub(super) unknown: UnknownText,
}

impl Decoded {
    /// Returns the number of stand-ins.
    pub(super) fn stand_ins(&self) -> u32 {
        u32::try_from(self.bad.count).unwrap_or(u32::MAX)
    }
}

/// Unreadable records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadRecords {
    /// Their number.
    pub count: u64,
    /// The first of them, with their places.
    pub examples: Vec<String>,
}

impl BadRecords {
    /// Adds an example that counts for `count` records.
    pub(super) fn note(&mut self, example: String, count: u64) {
        self.count += count;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example);
        }
    }

    /// Returns the error that refuses their source.
    pub(super) fn refused(self, max: u64) -> DataError {
        DataError::BadRecords { count: self.count, max, examples: self.examples }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        let room = EXAMPLES_MAX - self.examples.len().min(EXAMPLES_MAX);
        self.examples.extend(other.examples.iter().take(room).cloned());
    }
}

impl Piece {
    /// Returns the number of good records.
    pub(super) fn records(&self) -> u64 {
        self.records.len() as u64
    }

    /// Returns its texts, each with its separator.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.records.iter().filter_map(|record| record.as_text().map(|(_, text)| text))
    }

    /// Returns its conversations.
    pub(super) fn conversations(&self) -> impl Iterator<Item = &Conversation> {
        self.records.iter().filter_map(|record| match record {
            Record::Conversation { conversation, .. } => Some(conversation),
            _ => None,
        })
    }

    /// Returns its labelled texts.
    pub(super) fn labelled(&self) -> impl Iterator<Item = &LabelledText> {
        self.records.iter().filter_map(|record| match record {
            Record::Labelled { text, .. } => Some(text),
            _ => None,
        })
    }

    /// Returns the place of a conversation or a labelled text in its file, for messages.
    pub(super) fn place(&self, record: usize) -> &str {
        match self.records.get(record) {
            Some(Record::Conversation { place, .. } | Record::Labelled { place, .. }) => place,
            _ => "",
        }
    }

    /// Counts byte order marks in its texts, without that at the start of a file.
    pub(super) fn byte_order_marks(&self) -> u64 {
        self.texts().map(|text| text.matches(records::MARK).count() as u64).sum()
    }

    /// Counts lines of its texts that end with CR LF.
    pub(super) fn carriage_returns(&self) -> u64 {
        self.texts().map(|text| memchr::memmem::find_iter(text.as_bytes(), b"\r\n").count() as u64).sum()
    }

    /// Returns its odd records, each without its separator.
    pub(super) fn odd_texts(&self, separator: &str) -> OddTexts {
        let mut odd = OddTexts::default();
        for record in &self.records {
            match record {
                Record::Text(text) => odd.see(text.strip_suffix(separator).unwrap_or(text)),
                Record::Continued { text, .. } => odd.see_part(text),
                _ => {}
            }
        }
        odd
    }

    /// Returns the notes on its records, beyond those of the reader.
    pub(super) fn notes_within(&self, recipe: &Recipe) -> Notes {
        let mut notes = Notes::default();
        // In other formats these belong to the record.
        if recipe.format == DataFormat::Text {
            notes.note(Note::LoneReturns, self.lone_returns(), String::new);
            let nuls = self.texts().map(|text| memchr::memchr_iter(0, text.as_bytes()).count() as u64).sum();
            notes.note(Note::Nuls, nuls, String::new);
        }
        let separator = recipe.separator.as_str();
        if !separator.trim().is_empty() {
            let has_one = |text: &&str| text.strip_suffix(separator).unwrap_or(text).contains(separator);
            let shown = |text: &str| text.chars().take(SHOWN_CHARACTERS).collect::<String>();
            let first = || self.texts().find(has_one).map(|text| format!("{:?}", shown(text)));
            let count = self.texts().filter(has_one).count() as u64;
            notes.note(Note::Separators, count, || first().unwrap_or_default());
        }
        for record in &self.records {
            let mut see = |text: &str| recipe.control_tokens.note(text, &mut notes);
            match record {
                Record::Text(text) | Record::Continued { text, .. } => {
                    see(text.strip_suffix(separator).unwrap_or(text));
                }
                Record::Labelled { text, .. } => {
                    see(&text.text);
                    text.pair.iter().for_each(|pair| see(pair));
                }
                Record::Conversation { conversation, .. } => conversation.texts().for_each(see),
                Record::Image(image) => notes.add(&image.notes()),
                Record::Tokens(_) | Record::Bad { .. } => {}
            }
        }
        notes
    }

    /// Counts lines of its texts that end with CR alone; a CR at the end of a part is decided by the next part.
    fn lone_returns(&self) -> u64 {
        let mut count = 0;
        let mut texts = self.texts().map(str::as_bytes).peekable();
        while let Some(text) = texts.next() {
            let next = texts.peek().and_then(|next| next.first().copied());
            let behind = |at: usize| text.get(at + 1).copied().or(next);
            let alone = memchr::memchr_iter(b'\r', text).filter(|at| behind(*at) != Some(b'\n'));
            count += alone.count() as u64;
        }
        count
    }

    /// Returns the name of its result, in hexadecimal: equal records give equal tokens, in any file.
    pub(super) fn name(&self, recipe: &blake3::Hash) -> String {
        let mut hasher = name_of_recipe(recipe);
        for record in &self.records {
            match record {
                Record::Text(text) => {
                    hasher.update(&(text.len() as u64).to_le_bytes());
                    hasher.update(text.as_bytes());
                }
                Record::Continued { before, text } => {
                    // Longer than any text.
                    hasher.update(&u64::MAX.to_le_bytes());
                    for part in [before, text] {
                        hasher.update(&(part.len() as u64).to_le_bytes());
                        hasher.update(part.as_bytes());
                    }
                }
                Record::Tokens(tokens) => {
                    hasher.update(&(tokens.len() as u64).to_le_bytes());
                    for token in tokens {
                        hasher.update(&token.to_le_bytes());
                    }
                }
                Record::Image(image) => image.hash_into(&mut hasher),
                Record::Conversation { conversation, .. } => conversation.hash_into(&mut hasher),
                Record::Labelled { text, .. } => text.hash_into(&mut hasher),
                Record::Bad { .. } => {}
            }
        }
        finish_name(&hasher)
    }

    /// Returns the class of each of its images, assuming that all can be decoded.
    pub(super) fn labels(&self) -> Vec<u32> {
        let class =
            |record: &Record| if let Record::Image(image) = record { Some(image.class) } else { None };
        self.records.iter().filter_map(class).collect()
    }

    /// Decodes its images to samples, until a stop. All cores take part, so that the last piece of a source is not left to one of them. An image that
    /// cannot be decoded is replaced by another.
    ///
    /// # Errors
    /// A stop.
    pub(super) fn decode(self, shape: &ImageConfig, work: &Work) -> Result<Decoded, DataError> {
        let (mut decoded, mut is_bad) = (Decoded::default(), Vec::new());
        let as_image = |record| if let Record::Image(image) = record { Some(image) } else { None };
        let mut images = self.records.into_iter().filter_map(as_image).peekable();
        while images.peek().is_some() {
            work.goes_on()?;
            let together: Vec<RawImage> = images.by_ref().take(DECODED_TOGETHER).collect();
            let classes: Vec<u32> = together.iter().map(|image| image.class).collect();
            let made = decoders::wanted(together, |image| sample_of(image, shape));
            for (sample, class) in made.into_iter().zip(classes) {
                is_bad.push(sample.is_err());
                decoded.samples.extend(sample.unwrap_or_else(|reason| {
                    decoded.bad.note(reason, 1);
                    black(class, shape)
                }));
            }
        }
        stand_in(&mut decoded.samples, sample_bytes(shape), &is_bad);
        decoded.labels = decoded.samples.chunks(sample_bytes(shape)).map(class_of).collect();
        Ok(decoded)
    }

    /// Returns its tokens in the format of shards, record after record, until a stop.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_behind`](super::Tokenizer::encode_behind), and a stop.
    pub(super) fn tokens(
        &self,
        maker: &Maker<'_>,
        file: &Path,
        recipe: &Recipe,
    ) -> Result<PieceTokens, DataError> {
        let refused = |reason| DataError::io("tokenize", file)(io::Error::other(reason));
        let (mut made, token_bytes) = (PieceTokens::default(), recipe.item_bytes());
        for record in &self.records {
            maker.work.goes_on()?;
            if let Record::Tokens(tokens) = record {
                extend_with_tokens(&mut made.bytes, tokens, token_bytes);
            }
            if let Some((before, text)) = record.as_text() {
                let tokens =
                    maker.tokenizer.encode_behind(before, text, &recipe.separator).map_err(refused)?;
                let unknown = maker.tokenizer.unknown_text(before, text, &tokens, &recipe.separator);
                made.unknown.add(&unknown.map_err(refused)?);
                extend_with_tokens(&mut made.bytes, &tokens, token_bytes);
            }
        }
        Ok(made)
    }
}

/// Begins a piece's name: see [`Piece::name`].
pub(super) fn name_of_recipe(recipe: &blake3::Hash) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update(recipe.as_bytes());
    hasher
}

/// Finishes a piece's name.
pub(super) fn finish_name(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Decodes an image to a sample, or returns its place and the cause.
pub(super) fn sample_of(mut image: RawImage, shape: &ImageConfig) -> Result<Vec<u8>, String> {
    let place = std::mem::take(&mut image.place);
    let mut sample = Vec::with_capacity(sample_bytes(shape));
    decode(image, shape, &mut sample).map_err(|reason| format!("{place}: {reason}"))?;
    Ok(sample)
}

/// The pieces of a file, in order.
pub(super) struct Pieces {
    records: Box<dyn Records>,
    piece_bytes: u64,
    /// Shape of the samples of images; `None` for texts.
    image: Option<ImageConfig>,
    /// Bytes of a conversation or a labelled text in a row of its own; 0: rows are shared.
    row_bytes: u64,
}

impl Pieces {
    pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Self, DataError> {
        let records = records::open(file, recipe, cache)?;
        let row_bytes = match (&recipe.chat, &recipe.labelling) {
            (Some(chat), _) => chat.own_row_bytes(),
            (None, Some(labelling)) => labelling.row_bytes() as u64,
            (None, None) => 0,
        };
        Ok(Self { records, piece_bytes: recipe.piece_bytes, image: recipe.image.clone(), row_bytes })
    }

    /// Returns the bytes of the file read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.records.read_bytes()
    }

    /// Returns the next piece; `None` at the end.
    pub(super) fn next_piece(&mut self) -> Result<Option<Piece>, DataError> {
        let mut piece = Piece::default();
        let mut bytes = 0;
        while bytes < self.piece_bytes {
            match self.records.next_record()? {
                Some(Record::Bad { reason, count }) => piece.bad.note(reason, count),
                Some(record) => {
                    bytes += self.weight_of(&record)?;
                    piece.records.push(record);
                }
                None => break,
            }
        }
        piece.notes = self.records.take_notes();
        let is_nothing = piece.records.is_empty() && piece.bad.count == 0 && piece.notes.are_none();
        Ok((!is_nothing).then_some(piece))
    }

    /// Returns the weight of a record.
    ///
    /// # Errors
    /// An image with a class out of range.
    fn weight_of(&self, record: &Record) -> Result<u64, DataError> {
        check_class(record, self.image.as_ref())?;
        match (record, &self.image) {
            (Record::Image(_), Some(shape)) => Ok(image_weight(record.bytes(), shape)),
            (Record::Conversation { .. } | Record::Labelled { .. }, _) => {
                Ok(RECORD_BYTES + record.bytes().max(self.row_bytes))
            }
            _ => Ok(RECORD_BYTES + record.bytes()),
        }
    }
}

/// Checks that the class of an image exists.
///
/// # Errors
/// It does not.
pub(super) fn check_class(record: &Record, shape: Option<&ImageConfig>) -> Result<(), DataError> {
    match (record, shape) {
        (Record::Image(image), Some(shape)) if image.class >= shape.classes => {
            let (place, class, classes) = (image.place.clone(), image.class, shape.classes);
            Err(DataError::NoClass { place, class, classes })
        }
        _ => Ok(()),
    }
}

/// Returns the weight of an image in a piece: its size in memory, encoded or decoded, whichever is larger.
pub(super) fn image_weight(bytes: u64, shape: &ImageConfig) -> u64 {
    RECORD_BYTES + bytes.max(sample_bytes(shape) as u64)
}
