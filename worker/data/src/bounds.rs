//! Bounds that several readers have.

/// Bytes of one record, at most: a file whose line breaks or quotes were lost would else be taken into memory as one.
pub(super) const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a text that are tokenised at once, at most, where it can be cut nowhere: a tokenizer takes a hundred times as much.
pub(super) const UNCUT_BYTES_MAX: u64 = 16 << 20;

/// Bytes on either side of a cut that the tokenizer is asked about: more than a word or a run of white space usually has.
pub(super) const AROUND_BYTES: usize = 2048;

/// Files of a source, at most: each has a list, which is kept in memory.
pub(super) const FILES_MAX: usize = 1 << 16;
