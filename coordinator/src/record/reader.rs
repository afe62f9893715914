//! Reads a record.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::trace::Trace;
use super::{DECIDED, ENTRY_BYTES_MAX, IMAGE, Image, MAGIC, SCHEMA};
use longhaul_run::Event;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A system error.
    #[error("read the record {file}: {source}")]
    Io {
        /// Which file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is something else.
    #[error("{0} is not a record of decisions, a file `decisions/*.log` in a state directory")]
    Foreign(PathBuf),
    /// Another release wrote it.
    #[error(
        "the record {file} has layout {found}, this release knows {SCHEMA}: replay it with the release that wrote it"
    )]
    Version {
        /// Which file.
        file: PathBuf,
        /// Its layout.
        found: u16,
    },
    /// Its bytes make no sense.
    #[error("the record {file} is damaged, or of another release, at byte {at}: {what}")]
    Damaged {
        /// Which file.
        file: PathBuf,
        /// Where.
        at: u64,
        /// The fault found.
        what: String,
    },
}

/// An event, and the decisions on it.
#[derive(Debug)]
pub struct Entry {
    /// On the run's clock.
    pub now: Duration,
    /// The event.
    pub event: Event,
    /// Its resulting commands.
    pub decided: Vec<Trace>,
}

/// A record that is read entry by entry.
#[derive(Debug)]
pub struct Reader {
    file: PathBuf,
    input: BufReader<File>,
    at: u64,
}

impl Reader {
    /// Opens a record, and reads the run that it begins with.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn open(path: &Path) -> Result<(Self, Image), ReadError> {
        let failed = |source| ReadError::Io { file: path.to_owned(), source };
        let mut input = BufReader::new(File::open(path).map_err(failed)?);
        let mut head = [0; MAGIC.len() + 2];
        match input.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ReadError::Foreign(path.to_owned()));
            }
            read => read.map_err(failed)?,
        }
        let (magic, [low, high]) = head.split_at(MAGIC.len()) else {
            return Err(ReadError::Foreign(path.to_owned()));
        };
        if magic != MAGIC {
            return Err(ReadError::Foreign(path.to_owned()));
        }
        let found = u16::from_le_bytes([*low, *high]);
        if found != SCHEMA {
            return Err(ReadError::Version { file: path.to_owned(), found });
        }
        let mut reader = Self { file: path.to_owned(), input, at: head.len() as u64 };
        let image = match reader.next_bytes()? {
            Some(bytes) if bytes.first() == Some(&IMAGE) => {
                postcard::from_bytes(&bytes[1..]).map_err(|error| reader.damaged(error.to_string()))?
            }
            _ => return Err(reader.damaged("it does not begin with a run".to_owned())),
        };
        Ok((reader, image))
    }

    /// The next entry; none at the end, also where the coordinator was killed in the middle of one.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        let Some(bytes) = self.next_bytes()? else { return Ok(None) };
        if bytes.first() != Some(&DECIDED) {
            return Err(self.damaged("an entry is of an unknown kind".to_owned()));
        }
        let (now, event, decided) =
            postcard::from_bytes(&bytes[1..]).map_err(|error| self.damaged(error.to_string()))?;
        Ok(Some(Entry { now, event, decided }))
    }

    fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let mut length = [0; 4];
        if !self.fill(&mut length)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length);
        if length == 0 || length > ENTRY_BYTES_MAX {
            return Err(self.damaged(format!("an entry has {length} bytes")));
        }
        // With a wrong length, only the bytes present take memory.
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(u64::from(length)).read_to_end(&mut bytes);
        read.map_err(|source| ReadError::Io { file: self.file.clone(), source })?;
        if bytes.len() < length as usize {
            return Ok(None);
        }
        self.at += 4 + u64::from(length);
        Ok(Some(bytes))
    }

    /// False: the file ends before all of it.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, ReadError> {
        match self.input.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(ReadError::Io { file: self.file.clone(), source }),
        }
    }

    fn damaged(&self, what: String) -> ReadError {
        ReadError::Damaged { file: self.file.clone(), at: self.at, what }
    }
}
