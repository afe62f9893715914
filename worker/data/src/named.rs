//! Names of shards.

/// A shard's file, with the identity of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// See [`super::shard::Shard::hash`], in hexadecimal.
    pub(super) hash: String,
}
