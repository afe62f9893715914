//! Stand-in for gzip in builds without the feature `gzip`.

use std::io::{BufRead, Read};

use crate::{DataError, built};

/// Refuses.
pub(super) fn decompressed(_: impl BufRead + 'static) -> Result<Box<dyn Read>, DataError> {
    Err(built::GZIP.missing())
}
