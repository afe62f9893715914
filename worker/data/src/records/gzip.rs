//! Files of gzip (RFC 1952).

use std::io::{self, BufRead, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;

use crate::DataError;

/// Returns a file's content: that of all its members, since tools append members.
pub(super) fn decompressed(file: impl BufRead + 'static) -> Result<Box<dyn Read>, DataError> {
    let decoder = MultiGzDecoder::new(file);
    let has_begun = decoder.header().is_some();
    Ok(Box::new(Members { decoder, has_begun }))
}

/// The members of a file, in order.
struct Members<R> {
    decoder: MultiGzDecoder<R>,
    /// Whether the first header was read.
    has_begun: bool,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| {
            // The header is known only within a member.
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
