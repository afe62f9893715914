//! Frames that were not taken.

/// How many frames were not taken, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Of an older generation.
    pub stale: u64,
    /// Of the present generation after it was told to settle.
    pub settling: u64,
    /// Of a newer generation, more than are kept for it ([`super::EARLY_FRAMES_PER_FRAGMENT_MAX`], [`super::EARLY_MODELS_MAX`]).
    pub early_overflow: u64,
    /// From no member, or not the sender's to send, or malformed.
    pub unexpected: u64,
    /// Seen before.
    pub duplicate: u64,
    /// For a round that is closed.
    pub late: u64,
    /// A result too far ahead; it is pulled when its turn comes.
    pub ahead: u64,
}
