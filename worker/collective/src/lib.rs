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

/// What a member says in an exchange.
pub type Word = [u8; 16];

/// How the members' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean, weighted by samples.
    Mean {
        /// This member's samples. With 0, its values do not matter.
        samples: u32,
    },
}

/// The members of a site, as one of them sees them. All members make the same calls in the same order, with vectors of
/// the same length.
///
/// Every call ends within the limit given at construction. An error is final: the values are undefined then, the other
/// members fail too, and each further call gives [`CollectiveError::Broken`].
pub trait Collective: Send {
    /// This member's place among the members, from 0.
    fn rank(&self) -> usize;

    /// How many members there are.
    fn size(&self) -> usize;

    /// Replaces every member's values `[P]` by their reduction: the same bits for all. Returns the samples of all members
    /// together (0 for a sum).
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn all_reduce(&mut self, values: &mut [f32], reduction: Reduction) -> Result<u64, CollectiveError>;

    /// As [`Self::all_reduce`], but member r gets `ranges[r]` only; its other values are undefined afterwards. The ranges
    /// are the same for all, one for each member, and do not overlap; any may be empty.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn reduce_scatter(
        &mut self,
        values: &mut [f32],
        ranges: &[Range<usize>],
        reduction: Reduction,
    ) -> Result<u64, CollectiveError>;

    /// Copies every member r's values at `ranges[r]` to all members. What is in no range is left as it is.
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn all_gather(&mut self, values: &mut [f32], ranges: &[Range<usize>]) -> Result<(), CollectiveError>;

    /// Replaces every member's `bytes` by those of member `root`, which are at most `bytes_max` (the same for all).
    ///
    /// # Errors
    /// [`CollectiveError`]
    fn broadcast(
        &mut self,
        root: usize,
        bytes: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Result<(), CollectiveError>;

    /// Tells all members a word and hears theirs, in order of rank: as soon as all have called it, which may take as long as `patience`.
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
