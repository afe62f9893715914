//! The catalogue of a run's data, as workers exchange it.

use std::collections::HashSet;
use std::fmt;

use longhaul_common::config::SOURCES_MAX;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::super::DataError;

/// Upper bound in bytes of a shard's items: thousands of times that of a usual piece.
const SHARD_BYTES_MAX: u64 = 1 << 38;

/// The shards of each source, and their tokenizer. Workers with the same data have equal catalogues, regardless of the paths of their files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalogue {
    /// BLAKE3 of `tokenizer.json`; `None`: tokens are bytes.
    pub tokenizer: Option<[u8; 32]>,
    /// In the configuration's order, held-out ones last.
    #[serde(deserialize_with = "a_few_sources")]
    pub(in super::super) sources: Vec<ListedSource>,
}

/// Upper bound of training and held-out sources.
const LISTED_MAX: usize = 2 * SOURCES_MAX;

/// Limits the number of sources: one without shards takes a byte on the wire and 24 in memory.
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
    /// Its part in the data's hash instead of its shards: for a folder of images, which is used before shards exist.
    pub identity: Option<[u8; 32]>,
    pub shards: Vec<ListedShard>,
    /// Images held out of it, each as the distance from the one before.
    pub held_out: Vec<u32>,
}

/// A shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct ListedShard {
    /// Hash of its header fields and table: it identifies all of its bytes.
    pub hash: [u8; 32],
    /// Tokens or images.
    pub items: u64,
}

impl Catalogue {
    /// Encodes the catalogue, for sending and hashing.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DataError> {
        postcard::to_stdvec(self).map_err(|error| Self::refused(&error.to_string()))
    }

    /// Decodes a received catalogue.
    ///
    /// # Errors
    /// It is no catalogue.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DataError> {
        let (catalogue, rest): (Self, _) =
            postcard::take_from_bytes(bytes).map_err(|error| Self::refused(&error.to_string()))?;
        if !rest.is_empty() {
            return Err(Self::refused("extra bytes follow it"));
        }
        if catalogue.shards().any(|shard| shard.items > SHARD_BYTES_MAX) {
            return Err(Self::refused("it has a shard that is longer than any"));
        }
        Ok(catalogue)
    }

    /// Checks that shards are possible with this many bytes per item.
    ///
    /// # Errors
    /// A shard would exceed the limit.
    pub(in super::super) fn fits(&self, item_bytes: usize) -> Result<(), DataError> {
        let bytes = |shard: &ListedShard| shard.items.saturating_mul(item_bytes as u64);
        match self.shards().all(|shard| bytes(shard) <= SHARD_BYTES_MAX) {
            true => Ok(()),
            false => Err(Self::refused("it has a shard that is longer than any")),
        }
    }

    /// Returns all shards, in order.
    pub(in super::super) fn shards(&self) -> impl Iterator<Item = &ListedShard> {
        self.sources.iter().flat_map(|source| &source.shards)
    }

    /// Returns the hashes of all shards, in order.
    pub fn shard_hashes(&self) -> impl Iterator<Item = [u8; 32]> {
        self.shards().map(|shard| shard.hash)
    }

    /// Returns the numbers of shards and items; duplicates count once.
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
