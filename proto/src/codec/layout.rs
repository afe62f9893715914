//! Which values a frame holds.

use super::chunks::Chunks;
use super::{FRAGMENT_VALUES_MAX, Selection};

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
    /// What `selection` keeps of `len` values; `count` is how many it has found if it has no fixed number. None if it
    /// cannot have found so many.
    pub fn new(selection: Selection, len: usize, count: usize) -> Option<Self> {
        match selection {
            Selection::All => Some(Self::All { len }),
            Selection::TopK { chunk, keep } => {
                Some(Self::Chunked(Chunks { len, chunk: chunk as usize, keep: keep as usize }))
            }
            Selection::Threshold { chunk, keep } => {
                let most = Quota::new(len, chunk, keep).most;
                (count <= most).then_some(Self::Scattered { len, kept: count, most })
            }
        }
    }

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

/// How many values a selection by threshold is to keep, and the bounds between which it leaves it at that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub wanted: usize,
    pub least: usize,
    pub most: usize,
}

impl Quota {
    /// Of `len` values, `keep` of each `chunk`, rounded up. 0.8 to 1.3 times as many will do (Lin et al. 2018).
    pub fn new(len: usize, chunk: u32, keep: u32) -> Self {
        debug_assert!(len <= FRAGMENT_VALUES_MAX, "so that the product fits 64 bits");
        let wanted = (len as u64 * u64::from(keep)).div_ceil(u64::from(chunk)) as usize;
        Self { wanted, least: (wanted * 8).div_ceil(10), most: len.min(wanted * 13 / 10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_rounded_up_and_bounded_by_what_there_is() {
        assert_eq!(Quota::new(1000, 4096, 41), Quota { wanted: 11, least: 9, most: 14 });
        assert_eq!(Quota::new(100, 8, 8), Quota { wanted: 100, least: 80, most: 100 });
        assert_eq!(Quota::new(0, 8, 8), Quota { wanted: 0, least: 0, most: 0 });
    }
}
