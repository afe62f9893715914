//! The exact reduction among the members of one site, over their fast link. `docs/collective.md` is the design.
#![forbid(unsafe_code)]

pub mod beside;
mod error;
mod nccl_error;
mod ranges;
mod ring;
mod statement;

use std::ops::Range;
use std::time::Duration;

pub use error::{CollectiveError, Peer};
pub use nccl_error::NcclError;
pub use ranges::even_ranges;
#[cfg(any(test, feature = "loopback"))]
pub use ring::loopback;
pub use ring::{CHUNK_BYTES, RingCollective, RingMember, RingSetup, SiteTls, SiteTlsError, Stop};

/// A member's message in an exchange.
pub type Word = [u8; 16];

/// Combination of the members' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum.
    Sum,
    /// Mean, weighted by samples.
    Mean {
        /// This member's samples. With 0, its values are ignored.
        samples: u32,
    },
}

/// The members of a site, as seen by one of them. All members make the same calls in the same order, with vectors of the same length.
///
/// Every call ends within the limit given at construction. An error is final: the values are undefined then, the other members fail too, and each further
/// call returns [`CollectiveError::Broken`].
pub trait Collective: Send {
    /// Returns this member's rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of members.
    fn size(&self) -> usize;

    /// Replaces every member's values `[P]` by their reduction, with the same bits for all. Returns the total samples of all members (0 for a sum).
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError>;

    /// As [`Self::all_reduce`], but member r gets `ranges[r]` only; its other values are undefined afterwards. The ranges are the same for all, one per
    /// member, and disjoint; any may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn reduce_scatter(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError>;

    /// Copies every member r's values at `ranges[r]` to all members. Values outside the ranges stay unchanged.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn all_gather(&mut self, values: &mut [f32], ranges: &[Range<usize>]) -> Result<(), CollectiveError>;

    /// Replaces every member's `bytes` by those of member `root`, at most `bytes_max` (the same for all).
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError>;

    /// Exchanges a word between all members, and returns the words in order of rank, once all have called it, which may take up to `patience`.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn exchange(&mut self, word: Word, patience: Duration) -> Result<Vec<Word>, CollectiveError>;

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn barrier(&mut self) -> Result<(), CollectiveError>;
}
