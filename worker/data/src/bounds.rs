//! Bounds that several readers have.

/// Bytes of one record, at most: a file whose line breaks or quotes were lost would else be taken into memory as one.
pub(super) const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Files of a source, at most: each has a list, which is kept in memory.
pub(super) const FILES_MAX: usize = 1 << 16;
