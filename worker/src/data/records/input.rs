//! A file's bytes, decompressed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::data::DataError;
use crate::data::remote::{RemoteFile, RemoteReader};

/// Bytes read from the disk at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// A file that is being read, and how far.
pub(in crate::data) struct Input {
    pub(super) path: PathBuf,
    pub(super) reader: Box<dyn Read>,
    pub(super) position: Position,
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

    /// The same with bytes that are said to be of a file of this name.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of_bytes(name: &str, bytes: &[u8]) -> Result<Self, DataError> {
        Self::new(Path::new(name), Box::new(io::Cursor::new(bytes.to_vec())))
    }

    fn new(path: &Path, file: Box<dyn Read>) -> Result<Self, DataError> {
        let position = Position::default();
        let counted = BufReader::with_capacity(BUFFER_BYTES, Counted { file, position: position.clone() });
        let reader: Box<dyn Read> = match path.extension().and_then(|end| end.to_str()) {
            Some(end) if end.eq_ignore_ascii_case("zst") => {
                Box::new(zstd::Decoder::with_buffer(counted).map_err(DataError::io("decompress", path))?)
            }
            // Tools append members to such files, and each is a part of the text.
            Some(end) if end.eq_ignore_ascii_case("gz") => {
                Box::new(flate2::bufread::MultiGzDecoder::new(counted))
            }
            _ => Box::new(counted),
        };
        Ok(Self { path: path.to_owned(), reader, position })
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
