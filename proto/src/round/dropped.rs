//! Frames dropped.

/// Number of frames dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Older generation.
    pub stale: u64,
    /// Present generation, after it began to settle.
    pub settling: u64,
    /// Newer generation, beyond the limits ([`super::EARLY_FRAMES_PER_FRAGMENT_MAX`],
    /// [`super::EARLY_MODELS_MAX`]).
    pub early_overflow: u64,
    /// From a non-member, not permitted to the sender, or malformed.
    pub unexpected: u64,
    /// Duplicate.
    pub duplicate: u64,
    /// For a closed round.
    pub late: u64,
    /// A result too far ahead; it is pulled in its turn.
    pub ahead: u64,
}
