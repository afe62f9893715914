//! Data lent from one worker to others: see `docs/data.md`, *From other workers*.

mod block_store;
mod catalogue;
mod items;

use std::fmt;

pub(super) use block_store::shard_name;
pub use block_store::{BlockStore, NotTheBlock};
pub use catalogue::Catalogue;
pub(super) use catalogue::{ListedShard, ListedSource};

use super::DataError;

/// A block of a shard, named by the hash of the shard's head: equal on every worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName {
    /// Hash of the shard's fields and table.
    pub shard: [u8; 32],
    /// Index of the block.
    pub block: u32,
}

/// For messages.
impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shard = blake3::Hash::from_bytes(self.shard).to_hex();
        write!(f, "block {} of shard {}", self.block, &shard[..8])
    }
}

/// A block for another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentBlock {
    /// Header and table of its shard.
    pub head: Vec<u8>,
    /// The items.
    pub bytes: Vec<u8>,
}

/// Fetches missing blocks into the cache.
pub trait Supply: Send + Sync + fmt::Debug {
    /// Announces the read of a block. Returns at once, with whether the block was not in flight yet.
    fn expect(&self, block: BlockName) -> bool;

    /// Waits until a block is in the cache, without a timeout.
    ///
    /// # Errors
    /// The cache cannot take it, or the session is over.
    fn bring(&self, block: BlockName) -> Result<(), DataError>;
}
