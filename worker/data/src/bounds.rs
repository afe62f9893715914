//! Bounds shared by several readers.

/// Most bytes of a record: without the limit, a file with lost line breaks or quotes would be read into memory
/// as one record.
pub(super) const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Most bytes of an uncuttable text that are tokenised at once: a tokenizer takes a hundred times as much memory.
pub(super) const UNCUT_BYTES_MAX: u64 = 16 << 20;

/// Bytes on either side of a cut that the tokenizer examines: more than usual words and runs of white space have.
pub(super) const AROUND_BYTES: usize = 2048;

/// Most files of a source: each has a list, which is kept in memory.
pub(super) const FILES_MAX: usize = 1 << 16;
