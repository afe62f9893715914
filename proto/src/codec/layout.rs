//! Which values a frame holds.

use super::chunks::Chunks;

/// The values that a frame holds of those that the selection saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// All of them.
    All {
        /// How many they are.
        len: usize,
    },
    /// As many of each chunk.
    Chunked(Chunks),
    /// So many, wherever they are.
    Scattered {
        /// Values that the selection saw.
        len: usize,
        /// Values that the frame holds.
        kept: usize,
        /// Values that a frame can hold.
        most: usize,
    },
}

impl Layout {
    /// Values that the frame holds.
    pub fn kept_total(self) -> usize {
        match self {
            Self::All { len } => len,
            Self::Chunked(chunks) => chunks.kept_total(),
            Self::Scattered { kept, .. } => kept,
        }
    }

    /// Values that a frame of this selection can hold: memory is taken for so many, so that it need not be taken again.
    pub fn kept_most(self) -> usize {
        match self {
            Self::Scattered { most, .. } => most,
            Self::All { .. } | Self::Chunked(_) => self.kept_total(),
        }
    }

    /// Whether there are positions to tell.
    pub fn is_selected(self) -> bool {
        !matches!(self, Self::All { .. })
    }
}
