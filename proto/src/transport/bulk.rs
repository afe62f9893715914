//! Bulk.

/// Streams.
pub const BULK_STREAMS_MAX: u32 = 12;
