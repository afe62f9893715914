//! Files of gzip (RFC 1952).

use std::io::{BufRead, Read};

use crate::data::DataError;

/// A file's content. Tools append members to such files, and each is a part of it.
pub(super) fn decompressed(file: impl BufRead + 'static) -> Result<Box<dyn Read>, DataError> {
    Ok(Box::new(flate2::bufread::MultiGzDecoder::new(file)))
}
