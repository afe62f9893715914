//! What a shard is called.

/// A shard's file, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// See [`super::shard::Shard::hash`], in hexadecimal.
    pub(super) hash: String,
}
