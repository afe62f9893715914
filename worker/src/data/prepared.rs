//! A file of a source as tokens in the cache.

use serde::{Deserialize, Serialize};

use super::cache::{Cache, document, read_document, remove, touch};
use super::lease::Lease;
use super::origin::Origin;
use super::partial::make_once;
use super::piece::{BadRecords, Piece, Pieces};
use super::pipeline::{Makers, Tokenised};
use super::shard::{self, TokenShard};
use super::side_by_side::Wanted;
use super::work::FileWork;
use super::{DataError, Recipe, Tokenizer, Work};

/// What is needed to make tokens of files.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub(super) cache: &'a Cache,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) work: &'a Work,
    pub(super) piece_bytes: u64,
}

/// The pieces of a file, which nobody throws away as long as the [`Lease`] is there with which it was prepared.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) file: Origin,
    pub(super) bytes: u64,
    pub(super) list: PieceList,
}

/// The pieces of a file under a recipe, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PieceList {
    /// Where the file was when it was prepared, and how: for people.
    pub(super) file: String,
    pub(super) recipe: String,
    pub(super) pieces: Vec<ListedPiece>,
    pub(super) bad: BadRecords,
}

/// What a piece became.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListedPiece {
    /// Of its shard's file.
    pub(super) name: String,
    pub(super) records: u64,
    pub(super) tokens: u64,
    /// Of its shard: see [`TokenShard::hash`].
    pub(super) hash: String,
}

impl<'a> Maker<'a> {
    /// The tokens of a file, which are made where they are not there.
    pub(super) fn prepare(&self, wanted: &Wanted<'a>, makers: &Makers<'a>) -> Result<Prepared, DataError> {
        let Wanted { file, bytes, recipe, .. } = *wanted;
        let mut work = FileWork::new(self.work, &makers.has_failed, bytes);
        work.goes_on()?;
        let state = file.state()?;
        let hash = file.hash(self.cache, &mut work)?;
        work.has_hashed(bytes);
        let name = list_name(&hash, file, recipe);
        makers.lease.list(&name)?;
        let (path, mut is_new) = (self.cache.list(&name), false);
        let make = || {
            is_new = true;
            let accept = |bad: &BadRecords| wanted.bad.has(wanted.place, bad);
            let Tokenised { pieces, bad } = makers.tokenise(file, recipe, accept, &mut work)?;
            if file.state()? != state {
                return Err(DataError::Changed { path: file.path().to_owned() });
            }
            let (file, recipe) = (file.path().display().to_string(), recipe.to_string());
            document(&PieceList { file, recipe, pieces, bad }, &path)
        };
        let list: PieceList = make_once(&path, self.cache, || read_document(&path), make)?;
        touch(&path)?;
        wanted.bad.has_all(wanted.place, &list.bad)?;
        work.finish(!is_new);
        Ok(Prepared { file: file.clone(), bytes, list })
    }

    /// The list of a file that is prepared; nothing is made.
    pub(super) fn find(&self, file: &Origin, recipe: &Recipe) -> Result<Option<PieceList>, DataError> {
        match file.known_hash(self.cache)? {
            Some(hash) => read_document(&self.cache.list(&list_name(&hash, file, recipe))),
            None => Ok(None),
        }
    }

    /// Makes those shards of a file again that are not there.
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

    /// Makes one shard of a file again, which is missing or damaged.
    pub(super) fn make_again(
        &self,
        file: &Origin,
        recipe: &Recipe,
        name: &str,
    ) -> Result<TokenShard, DataError> {
        let path = self.cache.shard(name);
        tracing::warn!(shard = %path.display(), file = %file.path().display(), "prepared data is damaged or missing: making it again");
        let (mut pieces, hash) = (Pieces::open(file, recipe, self.cache)?, recipe.hash(file.path()));
        while let Some(piece) = pieces.next_piece()? {
            if piece.name(&hash) == name {
                // Whoever has the damaged one mapped keeps it.
                remove(&path)?;
                return self.make_shard(file, name, piece).map(|(shard, _)| shard);
            }
        }
        Err(DataError::Changed { path: file.path().to_owned() })
    }

    /// A piece of a file as a shard.
    pub(super) fn make_piece(
        &self,
        piece: Piece,
        file: &Origin,
        recipe: &blake3::Hash,
        lease: &Lease,
    ) -> Result<ListedPiece, DataError> {
        let (name, records) = (piece.name(recipe), piece.records());
        lease.shard(&name)?;
        let (shard, is_new) = self.make_shard(file, &name, piece)?;
        self.work.has_shard(shard.len(), is_new);
        let hash = blake3::Hash::from_bytes(shard.hash()).to_hex().to_string();
        Ok(ListedPiece { name, records, tokens: shard.len(), hash })
    }

    /// The shard of a piece, and whether it was not there.
    fn make_shard(&self, file: &Origin, name: &str, piece: Piece) -> Result<(TokenShard, bool), DataError> {
        let (path, mut is_new) = (self.cache.shard(name), false);
        let make = || {
            is_new = true;
            shard::encode(piece, self, file.path())
        };
        let shard = make_once(&path, self.cache, || TokenShard::map(&path), make)?;
        Ok((shard, is_new))
    }
}

fn list_name(hash: &str, file: &Origin, recipe: &Recipe) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(hash.as_bytes());
    hasher.update(recipe.hash(file.path()).as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}
