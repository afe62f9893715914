//! What the data of a run consists of, as one worker tells others.

use std::collections::HashSet;
use std::fmt;

use longhaul_common::config::SOURCES_MAX;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::super::DataError;

/// Bytes of a shard's items, at most: thousands of times what a piece of the usual size becomes.
const SHARD_BYTES_MAX: u64 = 1 << 38;

/// The shards of each source, and the tokenizer that they were made with. Two workers with the same data have the same one, wherever their files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// BLAKE3 of `tokenizer.json`; none: tokens are bytes.
    pub tokenizer: Option<[u8; 32]>,
    /// In the configuration's order, those that are held out last.
    #[serde(deserialize_with = "a_few_sources")]
    pub(in super::super) sources: Vec<ListedSource>,
}

/// What is trained on and what is held out.
const LISTED_MAX: usize = 2 * SOURCES_MAX;

/// Without shards, a source is a byte on its way and 24 in memory.
fn a_few_sources<'de, D: Deserializer<'de>>(bytes: D) -> Result<Vec<ListedSource>, D::Error> {
    struct Sources;
    impl<'de> Visitor<'de> for Sources {
        type Value = Vec<ListedSource>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {LISTED_MAX} sources")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut sources = Vec::new();
            while let Some(source) = all.next_element()? {
                if sources.len() == LISTED_MAX {
                    return Err(A::Error::custom("it has more sources than a run may have"));
                }
                sources.push(source);
            }
            Ok(sources)
        }
    }
    bytes.deserialize_seq(Sources)
}

/// The shards of a source, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct ListedSource {
    /// What the data's hash has of it in the place of its shards: of a folder of images, which is trained on before there are any.
    pub identity: Option<[u8; 32]>,
    pub shards: Vec<ListedShard>,
    /// Images that are held out of it throughout: how far each is behind the one before.
    pub held_out: Vec<u32>,
}

/// A shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct ListedShard {
    /// Of its fields and table: it names all of its bytes.
    pub hash: [u8; 32],
    /// Tokens or images.
    pub items: u64,
}

impl Catalogue {
    /// As it is sent, and hashed.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DataError> {
        postcard::to_stdvec(self).map_err(|error| Self::refused(&error.to_string()))
    }

    /// What somebody else has sent.
    ///
    /// # Errors
    /// It is no catalogue.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DataError> {
        let (catalogue, rest): (Self, _) =
            postcard::take_from_bytes(bytes).map_err(|error| Self::refused(&error.to_string()))?;
        if !rest.is_empty() {
            return Err(Self::refused("there is something behind it"));
        }
        if catalogue.shards().any(|shard| shard.items > SHARD_BYTES_MAX) {
            return Err(Self::refused("it has a shard that is longer than any"));
        }
        Ok(catalogue)
    }

    /// Whether shards could have so many bytes in each item.
    ///
    /// # Errors
    /// One would be longer than any.
    pub(in super::super) fn fits(&self, item_bytes: usize) -> Result<(), DataError> {
        let bytes = |shard: &ListedShard| shard.items.saturating_mul(item_bytes as u64);
        match self.shards().all(|shard| bytes(shard) <= SHARD_BYTES_MAX) {
            true => Ok(()),
            false => Err(Self::refused("it has a shard that is longer than any")),
        }
    }

    /// All shards, in order.
    pub(in super::super) fn shards(&self) -> impl Iterator<Item = &ListedShard> {
        self.sources.iter().flat_map(|source| &source.shards)
    }

    /// What all of them are called, in order.
    pub fn shard_hashes(&self) -> impl Iterator<Item = [u8; 32]> {
        self.shards().map(|shard| shard.hash)
    }

    /// Shards and items: what comes twice is counted once.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let mut seen = HashSet::new();
        let shards = self.shards().filter(|shard| seen.insert(shard.hash));
        shards.fold((0, 0), |(count, items), shard| (count + 1, items + shard.items))
    }

    pub(in super::super) fn refused(reason: &str) -> DataError {
        DataError::Catalogue { reason: reason.to_owned() }
    }
}
