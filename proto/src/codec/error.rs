//! What can be wrong with a specification, an input and a frame.

use thiserror::Error;

use super::header::VERSION;
use super::{CHUNK_VALUES_MAX, FRAGMENT_VALUES_MAX, TILE_VALUES, ValueFormat};

/// A codec specification that cannot be carried out.
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
    /// No fragment has so many tiles.
    #[error("{tiles} tiles of {TILE_VALUES} values exceed the maximum of {FRAGMENT_VALUES_MAX} values")]
    Tiles {
        /// Tiles to be transformed.
        tiles: u32,
    },
    /// Stochastic rounding to this format would not be unbiased.
    #[error(
        "stochastic rounding is for {}: {values} does not have a level on either side of every value",
        ValueFormat::names_of(ValueFormat::rounds_at_random)
    )]
    Rounding {
        /// The format.
        values: ValueFormat,
    },
}

/// An input that must not be sent. Neither the output nor the residual has been changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The residual is of other matrices.
    #[error("a residual of other matrices does not fit the columns of this update")]
    Columns,
    /// The value at this index, with the residual added where there is one, is NaN or infinite, or so large that its
    /// transform might be.
    #[error("the update's value {index} is not finite, or too large to be transformed")]
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
    /// The leading stage cannot have a fragment of this length: it has fewer tiles than the stage transforms.
    #[error("the leading stage does not fit a fragment of {len} values")]
    Stage {
        /// Values in the fragment.
        len: usize,
    },
}

/// A frame that cannot be decoded. The accumulator has not been changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Matrices overlap, reach beyond the fragment, or have no such columns.
    #[error("the frame is of columns that its fragment cannot have")]
    Columns,
    /// The frame ends before its header, or before the sections that the header implies.
    #[error("the frame has {have} bytes, at least {need} are needed")]
    Truncated {
        /// Bytes that the frame must have.
        need: usize,
        /// Bytes that it has.
        have: usize,
    },
    /// A frame without positions is longer than its values.
    #[error("the frame has {have} bytes, {need} were expected")]
    TrailingBytes {
        /// Bytes that the frame must have.
        need: usize,
        /// Bytes that it has.
        have: usize,
    },
    /// The frame is of another version of the format.
    #[error("a frame of version {0}, where only version {VERSION} can be read")]
    Version(u8),
    /// The selection's tag is not known.
    #[error("unknown selection tag {0}")]
    Selection(u8),
    /// The value format's tag is not known.
    #[error("unknown value format tag {0}")]
    ValueFormat(u8),
    /// The stage's tag is not known, or its parameters are cut off, out of range or do not fit the fragment.
    #[error("leading stage {0} is unknown, or its parameters are invalid for this fragment")]
    Stage(u8),
    /// The way in which values are written is not known, or not for the value format.
    #[error("unknown value coding {0} for the value format")]
    Coding(u8),
    /// The frame holds more values than its selection can find.
    #[error("the frame's selection cannot find {count} among {seen} values")]
    Count {
        /// Values according to the header.
        count: u32,
        /// Values among which it selects.
        seen: usize,
    },
    /// The chunk's length or the number kept of it is out of range.
    #[error("the header's selection is invalid: 2^{chunk_log2} values a chunk, {keep} kept")]
    Chunk {
        /// Binary logarithm of the chunk's length.
        chunk_log2: u8,
        /// Values kept of each chunk.
        keep: u32,
    },
    /// The frame holds a fragment of another length.
    #[error("the frame holds {found} values, {expected} were expected")]
    Length {
        /// Values according to the header.
        found: u32,
        /// Values that the caller expects.
        expected: usize,
    },
    /// The accumulator does not have the expected length.
    #[error("the accumulator has {accumulator} values, {expected} were expected")]
    AccumulatorLength {
        /// Values in the accumulator.
        accumulator: usize,
        /// Values that the caller expects.
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
    /// A value becomes infinite when the transform is undone.
    #[error("value {index} is not finite after the inverse transform")]
    Overflow {
        /// The first such index.
        index: usize,
    },
    /// A value, a scale or a level is NaN or infinite.
    #[error("value block {block} holds a number that is not finite")]
    NonFinite {
        /// Index of the block in the value section.
        block: usize,
    },
}
