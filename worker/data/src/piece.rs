//! Parts of a file that are tokenised or decoded, kept and made again each by itself.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use longhaul_common::config::{DataFormat, ImageConfig};
use longhaul_proto::little_endian::extend_with_tokens;
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::image::{RawImage, black, class_of, decode, sample_bytes, stand_in};
use super::notes::{Note, Notes};
use super::odd_texts::OddTexts;
use super::origin::Origin;
use super::prepared::Maker;
use super::records::{self, Record, Records};
use super::tokenizer::UnknownText;
use super::{DataError, Recipe, Work, decoders};

/// What a record counts for beside its text: so a piece of empty ones comes to an end, too.
const RECORD_BYTES: u64 = 8;
/// Images that are decoded side by side between two looks at whether to go on.
const DECODED_TOGETHER: usize = 64;
/// Bad records that are remembered of a piece, with their places; the rest is counted.
pub(super) const EXAMPLES_MAX: usize = 8;

/// Characters of a text that a notice has.
const SHOWN_CHARACTERS: usize = 40;

/// Records that were read, and not yet tokenised or decoded.
#[derive(Debug, Default)]
pub(super) struct Piece {
    records: Vec<Record>,
    pub(super) bad: BadRecords,
    /// What its reader tells.
    pub(super) notes: Notes,
}

/// Images of each class.
pub(super) type Classes = BTreeMap<u32, u64>;

/// How many images there are of each class.
pub(super) fn classes_of(labels: &[u32]) -> Classes {
    let mut classes = Classes::new();
    labels.iter().for_each(|class| *classes.entry(*class).or_default() += 1);
    classes
}

/// What a piece's images became.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    /// One after the other, each with its class: as many as there are images.
    pub(super) samples: Vec<u8>,
    /// The class of each.
    pub(super) labels: Vec<u32>,
    /// Those that could not be decoded, in the place of which others stand.
    pub(super) bad: BadRecords,
}

/// What a piece's texts became.
#[derive(Debug, Default)]
pub(super) struct PieceTokens {
    /// Little-endian, of as many bytes each as the recipe says.
    pub(super) bytes: Vec<u8>,
    pub(super) unknown: UnknownText,
}

impl Decoded {
    /// Samples that stand for others.
    pub(super) fn stand_ins(&self) -> u32 {
        u32::try_from(self.bad.count).unwrap_or(u32::MAX)
    }
}

/// What cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BadRecords {
    pub(super) count: u64,
    /// The first of them, with their places.
    pub(super) examples: Vec<String>,
}

impl BadRecords {
    /// Some more, which count for so many.
    pub(super) fn note(&mut self, example: String, count: u64) {
        self.count += count;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example);
        }
    }

    /// Why the source that has them is refused.
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
    /// Records that are good.
    pub(super) fn records(&self) -> u64 {
        self.records.len() as u64
    }

    /// Its texts, each with what stands behind it.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.records.iter().filter_map(|record| record.as_text().map(|(_, text)| text))
    }

    /// Byte order marks in its texts: that of a file's beginning is none of them.
    pub(super) fn byte_order_marks(&self) -> u64 {
        self.texts().map(|text| text.matches(records::MARK).count() as u64).sum()
    }

    /// Lines of its texts that end with CR LF.
    pub(super) fn carriage_returns(&self) -> u64 {
        self.texts().map(|text| memchr::memmem::find_iter(text.as_bytes(), b"\r\n").count() as u64).sum()
    }

    /// Its records that are odd, each without the separator behind it.
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

    /// What is told of its records, beside what their reader tells.
    pub(super) fn notes_within(&self, recipe: &Recipe) -> Notes {
        let mut notes = Notes::default();
        // Others keep what they have within a record.
        if recipe.format == DataFormat::Text {
            notes.note(Note::LoneReturns, self.lone_returns(), String::new);
        }
        let separator = recipe.separator.as_str();
        if !separator.trim().is_empty() {
            let has_one = |text: &&str| text.strip_suffix(separator).unwrap_or(text).contains(separator);
            let shown = |text: &str| text.chars().take(SHOWN_CHARACTERS).collect::<String>();
            let first = || self.texts().find(has_one).map(|text| format!("{:?}", shown(text)));
            let count = self.texts().filter(has_one).count() as u64;
            notes.note(Note::Separators, count, || first().unwrap_or_default());
        }
        let is_deep = |record: &&Record| matches!(record, Record::Image(image) if image.is_deep());
        let mut deep = self.records.iter().filter(is_deep);
        if let Some(Record::Image(image)) = deep.next() {
            notes.note(Note::DeepImages, 1 + deep.count() as u64, || image.place.clone());
        }
        notes
    }

    /// Lines of its texts that end with CR alone; of a CR at the end of a part, the next one tells.
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

    /// Names what it becomes, in hexadecimal: the same records become the same tokens, in whichever file they are.
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
                Record::Bad { .. } => {}
            }
        }
        finish_name(&hasher)
    }

    /// The class of each of its images, if all can be decoded.
    pub(super) fn labels(&self) -> Vec<u32> {
        let class =
            |record: &Record| if let Record::Image(image) = record { Some(image.class) } else { None };
        self.records.iter().filter_map(class).collect()
    }

    /// Its images as samples, decoded on all cores, as long as the work goes on: the last piece of a source is not left to one of them. In the place of one that cannot
    /// be decoded stands another.
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

    /// Its tokens as shards have them, records one after the other, as long as the work goes on.
    ///
    /// # Errors
    /// What [`Tokenizer::encode_behind`](super::Tokenizer::encode_behind) refuses, and a stop.
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
                let tokens = maker.tokenizer.encode_behind(before, text).map_err(refused)?;
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

/// Ends it.
pub(super) fn finish_name(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..32].to_owned()
}

/// What an image becomes, or where it is and what is wrong with it.
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
    /// What images become; of texts none.
    image: Option<ImageConfig>,
}

impl Pieces {
    pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Self, DataError> {
        let records = records::open(file, recipe, cache)?;
        Ok(Self { records, piece_bytes: recipe.piece_bytes, image: recipe.image.clone() })
    }

    /// Bytes of the file that were read so far.
    pub(super) fn read_bytes(&self) -> u64 {
        self.records.read_bytes()
    }

    /// The next one; none at the end.
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

    /// What a record counts for.
    ///
    /// # Errors
    /// An image of a class that there is not.
    fn weight_of(&self, record: &Record) -> Result<u64, DataError> {
        check_class(record, self.image.as_ref())?;
        match (record, &self.image) {
            (Record::Image(_), Some(shape)) => Ok(image_weight(record.bytes(), shape)),
            _ => Ok(RECORD_BYTES + record.bytes()),
        }
    }
}

/// Whether an image is of a class that there is.
///
/// # Errors
/// It is not.
pub(super) fn check_class(record: &Record, shape: Option<&ImageConfig>) -> Result<(), DataError> {
    match (record, shape) {
        (Record::Image(image), Some(shape)) if image.class >= shape.classes => {
            let (place, class, classes) = (image.place.clone(), image.class, shape.classes);
            Err(DataError::NoClass { place, class, classes })
        }
        _ => Ok(()),
    }
}

/// What an image of so many bytes counts for in a piece: what it takes in memory, before or after it is decoded.
pub(super) fn image_weight(bytes: u64, shape: &ImageConfig) -> u64 {
    RECORD_BYTES + bytes.max(sample_bytes(shape) as u64)
}
