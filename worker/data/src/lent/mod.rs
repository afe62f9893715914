//! Data that one worker has and others train on: see `docs/data.md`, *From other workers*.

mod block_store;
mod catalogue;
mod items;

use std::fmt;

pub(super) use block_store::shard_name;
pub use block_store::{BlockStore, NotTheBlock};
pub use catalogue::Catalogue;
pub(super) use catalogue::{ListedShard, ListedSource};

use super::DataError;

/// A block of a shard, by the hash of the shard's head: so it is the same one wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName {
    /// Hash of the shard's fields and table.
    pub shard: [u8; 32],
    /// Which of its blocks.
    pub block: u32,
}

/// For people.
impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = blake3::Hash::from_bytes(self.shard).to_hex();
        write!(f, "block {} of shard {}", self.block, &shard[..8])
    }
}

/// A block to be sent to another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentBlock {
    /// Of its shard: header and table.
    pub head: Vec<u8>,
    /// The items.
    pub bytes: Vec<u8>,
}

/// Who fetches blocks that are not in the cache into it.
pub trait Supply: Send + Sync + fmt::Debug {
    /// A block will be read soon. Returns at once: whether it was not on its way yet.
    fn expect(&self, block: BlockName) -> bool;

    /// Returns when a block is in the cache, however long that takes.
    ///
    /// # Errors
    /// The cache cannot take it, or the session is over.
    fn bring(&self, block: BlockName) -> Result<(), DataError>;
}
