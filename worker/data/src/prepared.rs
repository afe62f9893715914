//! A file of a source as tokens or images in the cache.

use longhaul_common::config::{DataConfig, DataFormat, DataSource};
use serde::{Deserialize, Serialize};

use super::bad_budget::BadBudget;
use super::cache::{Cache, document, read_document, remove, touch};
use super::chat::{ConversationCounts, Packed};
use super::lease::Lease;
use super::notes::Notes;
use super::origin::Origin;
use super::partial::make_once;
use super::piece::{BadRecords, Classes, Decoded, Piece, PieceTokens, Pieces, classes_of};
use super::pipeline::{Makers, Tokenised};
use super::shard::{self, Damaged, Shard};
use super::text_counts::TextCounts;
use super::work::FileWork;
use super::{DataError, Recipe, Tokenizer, Work};

/// The context for making tokens and images from files.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub(super) cache: &'a Cache,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) work: &'a Work,
    pub(super) piece_bytes: u64,
}

/// A file to prepare.
#[derive(Clone, Copy)]
pub(super) struct WantedFile<'a> {
    pub(super) file: &'a Origin,
    pub(super) bytes: u64,
    pub(super) recipe: &'a Recipe,
    pub(super) bad: &'a BadBudget,
    /// Its index among its source's files.
    pub(super) place: usize,
}

/// The pieces of a file, protected from eviction by the [`Lease`] of its preparation.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) file: Origin,
    pub(super) bytes: u64,
    pub(super) list: PieceList,
}

impl Prepared {
    /// Returns a file whose pieces are not known yet.
    pub(super) fn unlisted(file: &Origin, bytes: u64, recipe: &Recipe) -> Self {
        let list = PieceList {
            file: file.path().display().to_string(),
            recipe: recipe.to_string(),
            pieces: Vec::new(),
            bad: BadRecords::default(),
            classes: Classes::new(),
            labels: Vec::new(),
            counts: TextCounts::default(),
            conversations: ConversationCounts::default(),
            notes: Notes::default(),
        };
        Self { file: file.clone(), bytes, list }
    }
}

/// The pieces of a file under a recipe, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PieceList {
    /// Path of the file at its preparation, and the recipe: for people only.
    pub(super) file: String,
    pub(super) recipe: String,
    pub(super) pieces: Vec<ListedPiece>,
    pub(super) bad: BadRecords,
    /// Images or labelled texts of each class.
    #[serde(default, skip_serializing_if = "Classes::is_empty")]
    pub(super) classes: Classes,
    /// The class of each of its images or labelled texts, in order; absent in lists of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) labels: Vec<u32>,
    /// Counts of its texts; absent in lists of earlier versions.
    #[serde(default, skip_serializing_if = "TextCounts::are_zero")]
    pub(super) counts: TextCounts,
    #[serde(default, skip_serializing_if = "ConversationCounts::are_zero")]
    pub(super) conversations: ConversationCounts,
    #[serde(default, skip_serializing_if = "Notes::are_none")]
    pub(super) notes: Notes,
}

/// The result of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListedPiece {
    /// Name of its shard's file.
    pub(super) name: String,
    pub(super) records: u64,
    /// Items of its shard: tokens or images.
    #[serde(rename = "tokens")]
    pub(super) items: u64,
    /// Hash of its shard: see [`Shard::hash`].
    pub(super) hash: String,
}

/// A finished piece with its statistics.
#[derive(Debug)]
pub(super) struct MadePiece {
    pub(super) listed: ListedPiece,
    /// Its undecodable images, or conversations without a use.
    pub(super) bad: BadRecords,
    /// The class of each of its images.
    pub(super) labels: Vec<u32>,
    pub(super) counts: TextCounts,
    pub(super) conversations: ConversationCounts,
    pub(super) notes: Notes,
}

/// The shard of a piece.
struct MadeShard {
    shard: Shard,
    is_new: bool,
    records: u64,
    bad: BadRecords,
    labels: Vec<u32>,
    counts: TextCounts,
    conversations: ConversationCounts,
    notes: Notes,
}

impl<'a> Maker<'a> {
    /// Returns the recipe for the files of a source.
    ///
    /// # Errors
    /// The chat template cannot be used.
    pub(super) fn recipe(&self, source: &DataSource, config: &DataConfig) -> Result<Recipe, DataError> {
        Recipe::new(source, config, self.tokenizer, self.piece_bytes)
    }

    /// Returns a file's prepared pieces, and makes the missing ones.
    pub(super) fn prepare(
        &self,
        wanted: &WantedFile<'a>,
        makers: &Makers<'a>,
    ) -> Result<Prepared, DataError> {
        let WantedFile { file, bytes, recipe, .. } = *wanted;
        let mut work = FileWork::new(self.work, &makers.has_failed, bytes);
        work.goes_on()?;
        let state = file.state()?;
        makers.lease.stamps(&file.stamps()?)?;
        let hash = file.hash(self.cache, &mut work)?;
        work.has_hashed(bytes);
        let name = list_name(&hash, file, recipe);
        makers.lease.list(&name)?;
        let (path, mut is_new) = (self.cache.list(&name), false);
        let make = || {
            is_new = true;
            let accept = |bad: &BadRecords| wanted.bad.has(wanted.place, bad);
            let Tokenised { pieces, bad, labels, counts, conversations, notes } =
                makers.tokenise(file, recipe, accept, &mut work)?;
            if file.state()? != state {
                return Err(DataError::Changed { path: file.path().to_owned() });
            }
            let (file, recipe) = (file.path().display().to_string(), recipe.to_string());
            let classes = classes_of(&labels);
            let list = PieceList { file, recipe, pieces, bad, classes, labels, counts, conversations, notes };
            document(&list, &path)
        };
        let list: PieceList = make_once(&path, self.cache, || read_document(&path), make)?;
        touch(&path)?;
        wanted.bad.has_all(wanted.place, &list.bad)?;
        work.finish(!is_new);
        Ok(Prepared { file: file.clone(), bytes, list })
    }

    /// Returns the list of a prepared file, without making anything.
    pub(super) fn find(&self, file: &Origin, recipe: &Recipe) -> Result<Option<PieceList>, DataError> {
        match file.known_hash(self.cache)? {
            Some(hash) => read_document(&self.cache.list(&list_name(&hash, file, recipe))),
            None => Ok(None),
        }
    }

    /// Rebuilds the missing shards of a file.
    pub(super) fn complete(
        &self,
        prepared: &'a Prepared,
        recipe: &'a Recipe,
        makers: &Makers<'a>,
    ) -> Result<(), DataError> {
        let is_there = |piece: &ListedPiece| self.cache.shard(&piece.name).is_file();
        if prepared.list.pieces.iter().all(is_there) {
            return Ok(());
        }
        let mut work = FileWork::new(self.work, &makers.has_failed, prepared.bytes);
        let again = makers.tokenise(&prepared.file, recipe, |_| Ok(()), &mut work)?;
        if again.pieces == prepared.list.pieces {
            Ok(())
        } else {
            Err(DataError::Changed { path: prepared.file.path().to_owned() })
        }
    }

    /// Rebuilds a missing or damaged shard of a file.
    pub(super) fn make_again(&self, file: &Origin, recipe: &Recipe, name: &str) -> Result<Shard, DataError> {
        let path = self.cache.shard(name);
        tracing::warn!(shard = %path.display(), file = %file.path().display(), "prepared data is damaged or missing: rebuilding it");
        let (mut pieces, hash) = (Pieces::open(file, recipe, self.cache)?, recipe.hash(file.path()));
        while let Some(piece) = pieces.next_piece()? {
            if piece.name(&hash) == name {
                // Processes that have the damaged one mapped keep it.
                remove(&path)?;
                return self.make_shard(file, recipe, name, piece).map(|made| made.shard);
            }
        }
        Err(DataError::Changed { path: file.path().to_owned() })
    }

    /// Makes a shard from a piece of a file.
    pub(super) fn make_piece(
        &self,
        piece: Piece,
        file: &Origin,
        (recipe, recipe_hash): (&Recipe, blake3::Hash),
        lease: &Lease,
    ) -> Result<MadePiece, DataError> {
        let name = piece.name(&recipe_hash);
        lease.shard(&name)?;
        let mut notes = piece.notes_within(recipe);
        let made = self.make_shard(file, recipe, &name, piece)?;
        notes.add(&made.notes);
        let MadeShard { shard, is_new, records, bad, labels, counts, conversations, .. } = made;
        self.work.has_shard(shard.len(), is_new);
        let hash = blake3::Hash::from_bytes(shard.hash()).to_hex().to_string();
        let listed = ListedPiece { name, records, items: shard.len(), hash };
        Ok(MadePiece { listed, bad, labels, counts, conversations, notes })
    }

    fn make_shard(
        &self,
        file: &Origin,
        recipe: &Recipe,
        name: &str,
        piece: Piece,
    ) -> Result<MadeShard, DataError> {
        if let Some(chat) = &recipe.chat {
            let packed = chat.pack(piece.conversations(), self.tokenizer, || self.work.goes_on())?;
            return self.make_rows(packed, recipe, name, &piece);
        }
        if let Some(labelling) = &recipe.labelling {
            let packed = labelling.pack(piece.labelled(), self.tokenizer, || self.work.goes_on())?;
            return self.make_rows(packed, recipe, name, &piece);
        }
        let Some(shape) = &recipe.image else { return self.make_tokens(file, recipe, name, &piece) };
        let (path, records, mut is_new) = (self.cache.shard(name), piece.records(), false);
        let (counts, conversations) = (TextCounts::default(), ConversationCounts::default());
        // A shard with stand-ins has the same records: decoding them again finds the bad ones.
        let is_without = |shard: &Shard| (shard.len(), shard.stand_ins()) == (records, 0);
        if let Some(shard) = Shard::map(&path)?.filter(is_without) {
            let (bad, labels, notes) = (BadRecords::default(), piece.labels(), Notes::default());
            return Ok(MadeShard { shard, is_new, records, bad, labels, counts, conversations, notes });
        }
        let decoded = piece.decode(shape, self.work)?;
        let stand_ins = decoded.stand_ins();
        let Decoded { samples, labels, bad } = decoded;
        let make = || {
            is_new = true;
            Ok(shard::encode(&samples, recipe.item_bytes(), stand_ins))
        };
        let shard = make_once(&path, self.cache, || Shard::map(&path), make)?;
        let (records, notes) = (records - bad.count, Notes::default());
        Ok(MadeShard { records, shard, is_new, bad, labels, counts, conversations, notes })
    }

    /// Makes a shard from the rows of a piece of conversations or labelled texts. Its counts and bad records are in no shard, so all are tokenised even if it
    /// exists.
    fn make_rows(
        &self,
        packed: Packed,
        recipe: &Recipe,
        name: &str,
        piece: &Piece,
    ) -> Result<MadeShard, DataError> {
        let (path, mut is_new) = (self.cache.shard(name), false);
        let make = || {
            is_new = true;
            Ok(shard::encode(&packed.bytes, recipe.item_bytes(), 0))
        };
        let shard = make_once(&path, self.cache, || Shard::map(&path), make)?;
        let mut bad = BadRecords::default();
        packed.bad.iter().for_each(|(at, reason)| bad.note(format!("{}: {reason}", piece.place(*at)), 1));
        let counts = TextCounts { unknown_tokens: packed.unknown, odd: packed.odd, ..TextCounts::default() };
        let Packed { classes: labels, counts: conversations, notes, .. } = packed;
        let records = piece.records() - bad.count;
        Ok(MadeShard { shard, is_new, records, bad, labels, counts, conversations, notes })
    }

    /// Makes a shard from a piece of texts or of existing tokens.
    fn make_tokens(
        &self,
        file: &Origin,
        recipe: &Recipe,
        name: &str,
        piece: &Piece,
    ) -> Result<MadeShard, DataError> {
        let (path, mut made) = (self.cache.shard(name), None);
        let make = || {
            let PieceTokens { bytes, unknown } = piece.tokens(self, file.path(), recipe)?;
            made = Some(unknown);
            Ok(shard::encode(&bytes, recipe.item_bytes(), 0))
        };
        let shard = make_once(&path, self.cache, || Shard::map(&path), make)?;
        let unknown_tokens = self.unknown_tokens(&shard, file, recipe, piece)?;
        let (is_new, unknown_text) = (made.is_some(), made.unwrap_or_default());
        let (byte_order_marks, odd) = (piece.byte_order_marks(), piece.odd_texts(&recipe.separator));
        // In other formats these belong to the record.
        let carriage_returns = if recipe.format == DataFormat::Text { piece.carriage_returns() } else { 0 };
        let counts = TextCounts { unknown_tokens, byte_order_marks, carriage_returns, unknown_text, odd };
        let (records, bad, labels) = (piece.records(), BadRecords::default(), Vec::new());
        let (conversations, notes) = (ConversationCounts::default(), Notes::default());
        Ok(MadeShard { shard, is_new, records, bad, labels, counts, conversations, notes })
    }

    /// Counts the unknown tokens of a piece's shard, which may be older. A text that spells the token does not count, nor do files of tokens.
    fn unknown_tokens(
        &self,
        shard: &Shard,
        file: &Origin,
        recipe: &Recipe,
        piece: &Piece,
    ) -> Result<u64, DataError> {
        let Some(unknown) = self.tokenizer.unknown().filter(|_| piece.texts().next().is_some()) else {
            return Ok(0);
        };
        let count = match shard.read(0..shard.len()) {
            Ok(tokens) => unknown.count(tokens, recipe.item_bytes()),
            // Training on it triggers a rebuild.
            Err(Damaged) => {
                let again = piece.tokens(self, file.path(), recipe)?;
                unknown.count(&again.bytes, recipe.item_bytes())
            }
        };
        if count == 0 {
            return Ok(0);
        }
        Ok(count.saturating_sub(piece.texts().map(|text| unknown.mentions(text)).sum()))
    }
}

pub(super) fn list_name(hash: &str, file: &Origin, recipe: &Recipe) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(hash.as_bytes());
    hasher.update(recipe.hash(file.path()).as_bytes());
    hasher.update(recipe.reading().as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}
