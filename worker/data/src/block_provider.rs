//! Data lent to other workers.

use std::collections::HashMap;
use std::sync::Arc;

use super::lent::{BlockName, LentBlock, ListedSource};
use super::{DataError, Dataset, Tokenizer};

/// A dataset whose blocks are lent to other workers.
#[derive(Debug)]
pub struct BlockProvider {
    data: Arc<Dataset>,
    /// Index of the part and of its shard, by the shard's hash.
    places: HashMap<[u8; 32], (usize, usize)>,
    /// The encoded catalogue.
    pub catalogue: Arc<[u8]>,
    /// The `tokenizer.json`; `None`: tokens are bytes.
    pub tokenizer: Option<Arc<[u8]>>,
}

impl BlockProvider {
    /// Creates the provider of data made with this tokenizer.
    ///
    /// # Errors
    /// There is not enough memory for the catalogue.
    pub fn new(data: Arc<Dataset>, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let catalogue = data.catalogue(tokenizer);
        let of_source = |(part, source): (usize, &ListedSource)| {
            let hashes: Vec<[u8; 32]> = source.shards.iter().map(|shard| shard.hash).collect();
            hashes.into_iter().enumerate().map(move |(index, hash)| (hash, (part, index)))
        };
        let places = catalogue.sources.iter().enumerate().flat_map(of_source).collect();
        let bytes = catalogue.to_bytes()?;
        Ok(Self { data, places, catalogue: bytes.into(), tokenizer: tokenizer.json() })
    }

    /// Returns the BLAKE3 of the catalogue.
    #[must_use]
    pub fn catalogue_hash(&self) -> [u8; 32] {
        *blake3::hash(&self.catalogue).as_bytes()
    }

    /// Returns a valid block; `None`: it is not here, or does not exist. Damaged data built from files of this worker is rebuilt. Reads the
    /// disk: not for threads that must not block.
    ///
    /// # Errors
    /// It is damaged and cannot be rebuilt.
    pub fn block(&self, name: BlockName) -> Result<Option<LentBlock>, DataError> {
        let Some(&(part, index)) = self.places.get(&name.shard) else { return Ok(None) };
        self.data.lend(part, index, name.block as usize)
    }
}
