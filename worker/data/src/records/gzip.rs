//! Files of gzip (RFC 1952).

use std::io::{self, BufRead, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::DataError;

/// A file's content. Tools append members to such files, and each is a part of it.
pub(super) fn decompressed(file: impl BufRead + 'static) -> Result<Box<dyn Read>, DataError> {
    let decoder = MultiGzDecoder::new(file);
    let has_begun = decoder.header().is_some();
    Ok(Box::new(Members { decoder, has_begun }))
}

/// The members of a file, one after the other.
struct Members<R> {
    decoder: MultiGzDecoder<R>,
    /// Whether the first one's header was read.
    has_begun: bool,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| {
            // Within a member its header is known; between two of them there is none.
            let is_behind = self.has_begun && self.decoder.header().is_none();
            match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::UnexpectedEof if is_behind => io::Error::new(
                    ErrorKind::InvalidData,
                    "behind the end of its gzip data there is something else (such as zeros), or a further part of it that is cut off: get it anew, or unpack it (`gzip -dc`), which leaves that out",
                ),
                _ => error,
            }
        })
    }
}
