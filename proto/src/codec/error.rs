//! Errors of specifications, inputs and frames.

use thiserror::Error;

use super::header::VERSION;
use super::{CHUNK_VALUES_MAX, FRAGMENT_VALUES_MAX, TILE_VALUES, ValueFormat};

/// An invalid codec specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// The chunk is not a power of two in `1..=CHUNK_VALUES_MAX`.
    #[error("a chunk of {chunk} values is not a power of two of at most {CHUNK_VALUES_MAX}")]
    Chunk {
        /// Values in a chunk.
        chunk: u32,
    },
    /// The number of kept values is not in `1..=chunk`.
    #[error("cannot keep {keep} of each {chunk} values")]
    Keep {
        /// Values kept of a chunk.
        keep: u32,
        /// Values in a chunk.
        chunk: u32,
    },
    /// No fragment has this many tiles.
    #[error("{tiles} tiles of {TILE_VALUES} values exceed the maximum of {FRAGMENT_VALUES_MAX} values")]
    Tiles {
        /// Tiles to transform.
        tiles: u32,
    },
    /// Stochastic rounding to this format would be biased.
    #[error(
        "stochastic rounding is for {}: {values} does not have a level on either side of every value",
        ValueFormat::names_of(ValueFormat::rounds_at_random)
    )]
    Rounding {
        /// The format.
        values: ValueFormat,
    },
}

/// An input that must not be encoded. Output and residual are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The residual has other matrices.
    #[error("the residual has other matrices than this update")]
    Columns,
    /// The value at this index, including the residual, is NaN, infinite, or so large that its transform
    /// might be.
    #[error("value {index} of the update is not finite, or too large to transform")]
    NonFinite {
        /// The first such index.
        index: usize,
    },
    /// The fragment is longer than [`FRAGMENT_VALUES_MAX`].
    #[error("a fragment of {len} values exceeds the maximum of {FRAGMENT_VALUES_MAX}")]
    TooLong {
        /// Values in the fragment.
        len: usize,
    },
    /// The residual belongs to a fragment of another length.
    #[error("a residual of {residual} values does not fit a fragment of {delta}")]
    ResidualLength {
        /// Values in the fragment.
        delta: usize,
        /// Values in the residual.
        residual: usize,
    },
    /// The fragment has fewer tiles than the stage transforms.
    #[error("the leading stage does not fit a fragment of {len} values")]
    Stage {
        /// Values in the fragment.
        len: usize,
    },
}

/// A frame that cannot be decoded. The accumulator is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Matrices overlap, exceed the fragment, or lack these columns.
    #[error("the frame's columns do not fit its fragment")]
    Columns,
    /// The frame ends within its header or within the sections that the header implies.
    #[error("the frame has {have} bytes; at least {need} are required")]
    Truncated {
        /// Bytes required.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// The frame, which has no positions, is longer than its values.
    #[error("the frame has {have} bytes; {need} were expected")]
    TrailingBytes {
        /// Bytes expected.
        need: usize,
        /// Bytes present.
        have: usize,
    },
    /// The frame has another version.
    #[error("unsupported frame version {0}; only version {VERSION} is supported")]
    Version(u8),
    /// Unknown tag of the selection.
    #[error("unknown selection tag {0}")]
    Selection(u8),
    /// Unknown tag of the value format.
    #[error("unknown value format tag {0}")]
    ValueFormat(u8),
    /// Unknown tag of the stage, or its parameters are cut off, out of range or do not fit the fragment.
    #[error("leading stage {0} is unknown, or its parameters are invalid for this fragment")]
    Stage(u8),
    /// Unknown coding of values, or not one of the value format.
    #[error("unknown value coding {0} for the value format")]
    Coding(u8),
    /// The frame contains more values than its selection can find.
    #[error("the frame's selection cannot find {count} among {seen} values")]
    Count {
        /// Values by the header.
        count: u32,
        /// Values to select from.
        seen: usize,
    },
    /// The chunk's length or the number of values kept is out of range.
    #[error("the header's selection is invalid: 2^{chunk_log2} values a chunk, {keep} kept")]
    Chunk {
        /// Binary logarithm of the chunk's length.
        chunk_log2: u8,
        /// Values kept of each chunk.
        keep: u32,
    },
    /// The frame contains a fragment of another length.
    #[error("the frame contains {found} values; {expected} were expected")]
    Length {
        /// Values by the header.
        found: u32,
        /// Values expected by the caller.
        expected: usize,
    },
    /// The accumulator has another length.
    #[error("the accumulator has {accumulator} values; {expected} were expected")]
    AccumulatorLength {
        /// Values in the accumulator.
        accumulator: usize,
        /// Values expected by the caller.
        expected: usize,
    },
    /// A coded gap leads beyond its chunk.
    #[error("a position in the chunk that starts at {chunk_start} lies outside it")]
    Position {
        /// The chunk's first position.
        chunk_start: usize,
    },
    /// The position stream has too few or too many words, or does not end in its initial state.
    #[error("the position stream is damaged")]
    PositionStream,
    /// The table of an entropy-coded section has fewer than two symbols.
    #[error("the table of the code stream is damaged")]
    CodeTable,
    /// An entropy-coded section is too short, has too few or too many words, or does not end in its initial state.
    #[error("the code stream is damaged")]
    CodeStream,
    /// The inverse transform makes a value infinite.
    #[error("value {index} is not finite after the inverse transform")]
    Overflow {
        /// The first such index.
        index: usize,
    },
    /// A value, scale or level is NaN or infinite.
    #[error("value block {block} contains a number that is not finite")]
    NonFinite {
        /// Index of the block in the value section.
        block: usize,
    },
}
