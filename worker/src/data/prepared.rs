//! A file of a source as tokens in the cache.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cache::{Cache, document, make_once, read_document, touch};
use super::piece::{BadRecords, Piece, Pieces};
use super::pipeline::{Tokenised, tokenise};
use super::shard::{self, TokenShard};
use super::stamp::{Stamp, State};
use super::{DataError, Recipe, Tokenizer, Work};

/// What is needed to make tokens of files.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub(super) cache: &'a Cache,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) work: &'a Work,
    pub(super) piece_bytes: u64,
}

/// The pieces of a file, which nobody throws away as long as this is there.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) file: PathBuf,
    pub(super) bytes: u64,
    pub(super) list: PieceList,
    _in_use: File,
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

impl Maker<'_> {
    /// The tokens of a file, which are made where they are not there. `bad_max` of its records may be bad.
    pub(super) fn prepare(&self, file: &Path, recipe: &Recipe, bad_max: u64) -> Result<Prepared, DataError> {
        let stamp = Stamp::of(file, self.cache)?;
        self.work.expects(stamp.bytes());
        let path = self.cache.list(&list_name(&stamp, file, recipe));
        let state = State::of(file)?;
        let open = || open_list(&path);
        let make = || {
            let list = self.make_pieces(file, recipe, bad_max)?;
            if State::of(file)? != state {
                return Err(DataError::Changed { path: file.to_owned() });
            }
            document(&list, &path)
        };
        let (in_use, list) = make_once(&path, open, make)?;
        touch(&in_use, &path)?;
        self.work.has_file(state.bytes);
        Ok(Prepared { file: file.to_owned(), bytes: state.bytes, list, _in_use: in_use })
    }

    /// The list of a file that is prepared; nothing is made.
    pub(super) fn find(&self, file: &Path, recipe: &Recipe) -> Result<Option<PieceList>, DataError> {
        match Stamp::known(file, self.cache)? {
            Some(stamp) => read_document(&self.cache.list(&list_name(&stamp, file, recipe))),
            None => Ok(None),
        }
    }

    /// Makes those shards of a file again that are not there.
    pub(super) fn complete(&self, prepared: &Prepared, recipe: &Recipe) -> Result<(), DataError> {
        let is_there = |piece: &ListedPiece| self.cache.shard(&piece.name).is_file();
        if prepared.list.pieces.iter().all(is_there) {
            return Ok(());
        }
        let again = self.make_pieces(&prepared.file, recipe, u64::MAX)?;
        if again.pieces == prepared.list.pieces {
            Ok(())
        } else {
            Err(DataError::Changed { path: prepared.file.clone() })
        }
    }

    /// Makes one shard of a file again, which is missing or damaged.
    pub(super) fn make_again(
        &self,
        file: &Path,
        recipe: &Recipe,
        name: &str,
    ) -> Result<TokenShard, DataError> {
        let path = self.cache.shard(name);
        tracing::warn!(shard = %path.display(), file = %file.display(), "prepared data is damaged or missing: making it again");
        let (mut pieces, hash) = (Pieces::open(file, recipe)?, recipe.hash(file));
        while let Some(piece) = pieces.next_piece()? {
            if piece.name(&hash) == name {
                // Whoever has the damaged one mapped keeps it.
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(DataError::io("remove", &path)(error));
                    }
                    _ => return self.make_shard(file, name, piece).map(|(shard, _)| shard),
                }
            }
        }
        Err(DataError::Changed { path: file.to_owned() })
    }

    fn make_pieces(&self, file: &Path, recipe: &Recipe, bad_max: u64) -> Result<PieceList, DataError> {
        let hash = recipe.hash(file);
        let make = |piece: Piece| {
            let (name, records) = (piece.name(&hash), piece.records());
            let (shard, is_new) = self.make_shard(file, &name, piece)?;
            self.work.has_shard(shard.len(), is_new);
            let hash = blake3::Hash::from_bytes(shard.hash()).to_hex().to_string();
            Ok(ListedPiece { name, records, tokens: shard.len(), hash })
        };
        let Tokenised { pieces, bad } = tokenise(Pieces::open(file, recipe)?, bad_max, self.work, make)?;
        Ok(PieceList { file: file.display().to_string(), recipe: recipe.to_string(), pieces, bad })
    }

    /// The shard of a piece, and whether it was not there.
    fn make_shard(&self, file: &Path, name: &str, piece: Piece) -> Result<(TokenShard, bool), DataError> {
        let (path, mut is_new) = (self.cache.shard(name), false);
        let make = || {
            is_new = true;
            let refused = |reason| DataError::io("tokenize", file)(std::io::Error::other(reason));
            shard::encode(piece, self.tokenizer).map_err(refused)
        };
        let shard = make_once(&path, || TokenShard::map(&path), make)?;
        Ok((shard, is_new))
    }
}

fn list_name(stamp: &Stamp, file: &Path, recipe: &Recipe) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(stamp.hash.as_bytes());
    hasher.update(recipe.hash(file).as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}

/// A list and the lock on it.
fn open_list(path: &Path) -> Result<Option<(File, PieceList)>, DataError> {
    let Some(list) = read_document(path)? else { return Ok(None) };
    let file = File::options().read(true).write(true).open(path).map_err(DataError::io("open", path))?;
    file.lock_shared().map_err(DataError::io("lock", path))?;
    Ok(Some((file, list)))
}
