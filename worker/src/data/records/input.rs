//! A file's bytes, decompressed.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::gzip;
use crate::data::DataError;
use crate::data::remote::{RemoteFile, RemoteReader};

/// Bytes read from the disk at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// What UTF-8 may begin with (a byte order mark, U+FEFF), where it only says that it is UTF-8.
pub(super) const MARK: &str = "\u{feff}";

/// A file that is being read, and how far.
pub(in crate::data) struct Input {
    pub(super) path: PathBuf,
    pub(super) reader: Box<dyn Read>,
    pub(super) position: Position,
    /// Bytes of its content before the first that is read.
    pub(super) left_out: u64,
}

impl Input {
    /// Opens a file, which is decompressed where its name ends with `.zst` or `.gz`.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        Self::new(path, Box::new(file))
    }

    /// The same with one that is elsewhere.
    pub(super) fn remote(file: &RemoteFile) -> Result<Self, DataError> {
        let failed = |source| DataError::Remote { url: file.shown.display().to_string(), source };
        Self::new(&file.shown, Box::new(RemoteReader::new(file).map_err(failed)?))
    }

    /// The same without the mark that a text may begin with, which is none of it.
    pub(super) fn without_mark(mut self) -> Result<Self, DataError> {
        let mut head = Vec::with_capacity(MARK.len());
        let read = self.reader.by_ref().take(MARK.len() as u64).read_to_end(&mut head);
        read.map_err(DataError::io("read", &self.path))?;
        if head == MARK.as_bytes() {
            self.left_out = MARK.len() as u64;
        } else {
            self.reader = Box::new(Cursor::new(head).chain(self.reader));
        }
        Ok(self)
    }

    /// The same with bytes that are said to be of a file of this name.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of_bytes(name: &str, bytes: &[u8]) -> Result<Self, DataError> {
        Self::new(Path::new(name), Box::new(Cursor::new(bytes.to_vec())))
    }

    fn new(path: &Path, file: Box<dyn Read>) -> Result<Self, DataError> {
        let position = Position::default();
        let counted = BufReader::with_capacity(BUFFER_BYTES, Counted { file, position: position.clone() });
        let reader: Box<dyn Read> = match path.extension().and_then(|end| end.to_str()) {
            Some(end) if end.eq_ignore_ascii_case("zst") => {
                Box::new(zstd::Decoder::with_buffer(counted).map_err(DataError::io("decompress", path))?)
            }
            Some(end) if end.eq_ignore_ascii_case("gz") => gzip::decompressed(counted)?,
            _ => Box::new(counted),
        };
        Ok(Self { path: path.to_owned(), reader, position, left_out: 0 })
    }
}

/// How many bytes of a file were read so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Position(Arc<AtomicU64>);

impl Position {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Counted {
    file: Box<dyn Read>,
    position: Position,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.position.0.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Vec<u8>, u64) {
        let mut input = Input::of_bytes("a.txt", bytes).unwrap().without_mark().unwrap();
        let mut content = Vec::new();
        input.reader.read_to_end(&mut content).unwrap();
        (content, input.left_out)
    }

    #[test]
    fn one_mark_is_left_out_at_the_beginning_and_none_elsewhere() {
        for (bytes, content, left_out) in [
            ("\u{feff}text", "text", 3),
            ("\u{feff}", "", 3),
            ("\u{feff}\u{feff}text", "\u{feff}text", 3),
            ("te\u{feff}xt", "te\u{feff}xt", 0),
            ("ab", "ab", 0),
            ("", "", 0),
        ] {
            assert_eq!(read(bytes.as_bytes()), (content.as_bytes().to_vec(), left_out), "{bytes:?}");
        }
        // Others that begin with some of its bytes.
        for bytes in [&b"\xef\xbb"[..], b"\xef\xbb\xbe", b"\xff\xfea\0"] {
            assert_eq!(read(bytes), (bytes.to_vec(), 0));
        }
    }
}
