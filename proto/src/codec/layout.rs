//! Values in a frame.

use super::chunks::Chunks;

/// Values in a frame, of those that the selection saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// All.
    All {
        /// Number of values.
        len: usize,
    },
    /// The same number of each chunk.
    Chunked(Chunks),
    /// A number of values at any place.
    Scattered {
        /// Values that the selection saw.
        len: usize,
        /// Values in the frame.
        kept: usize,
        /// Maximum values in a frame.
        most: usize,
    },
}

impl Layout {
    /// Returns the number of values in the frame.
    pub fn kept_total(self) -> usize {
        match self {
            Self::All { len } => len,
            Self::Chunked(chunks) => chunks.kept_total(),
            Self::Scattered { kept, .. } => kept,
        }
    }

    /// Returns the maximum number of values in a frame of this selection. Memory for as many is reserved
    /// once.
    pub fn kept_most(self) -> usize {
        match self {
            Self::Scattered { most, .. } => most,
            Self::All { .. } | Self::Chunked(_) => self.kept_total(),
        }
    }

    /// Whether the frame has positions.
    pub fn is_selected(self) -> bool {
        !matches!(self, Self::All { .. })
    }
}
