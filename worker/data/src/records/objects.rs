//! The objects of JSON lines, or of a JSON array, one by one.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;

use serde::de::IgnoredAny;

use super::elements::{Broken, Elements, NoElement};
use super::input::{Input, MARK, Packing, Position, command};
use crate::DataError;
use crate::bounds::RECORD_BYTES_MAX;

/// Where an object of JSON lines stands.
const LINE: &str = "line";
/// Makes a line of each object.
const EACH: &str = "jq -c 'if type == \"array\" then .[] else . end'";

/// The objects of a file.
pub(super) struct Objects {
    path: PathBuf,
    lines: BufReader<Box<dyn Read>>,
    position: Position,
    line: u64,
    /// `line`, or `element` of an array.
    unit: &'static str,
    bytes: Vec<u8>,
    packing: Option<Packing>,
}

impl Objects {
    /// Reads the beginning of a file: an array or lines.
    pub(super) fn new(input: Input) -> Result<Self, DataError> {
        let Input { path, mut reader, position, packing, .. } = input;
        let (first, line) = first_of(&mut reader).map_err(DataError::io("read", &path))?;
        let (lines, unit): (Box<dyn Read>, _) = match first {
            Some(b'[') => (Box::new(Elements::new(reader, line)), "element"),
            first => (Box::new(Cursor::new(Vec::from_iter(first)).chain(reader)), LINE),
        };
        Ok(Self { path, lines: BufReader::new(lines), position, line: 0, unit, bytes: Vec::new(), packing })
    }

    /// Returns the bytes of the next one, unparsed; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or it is too long.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, DataError> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let read = self.lines.by_ref().take(RECORD_BYTES_MAX).read_until(b'\n', &mut self.bytes);
            let read = read.map_err(|error| self.refused(error))? as u64;
            if read == 0 {
                return Ok(None);
            }
            if read == RECORD_BYTES_MAX && !self.bytes.ends_with(b"\n") {
                return Err(DataError::Malformed {
                    path: self.path.clone(),
                    format: "JSON",
                    place: format!("{} {}", self.unit, self.line),
                    reason: format!("it has more than {RECORD_BYTES_MAX} bytes: an object is one record"),
                });
            }
            if self.line == 1 && self.bytes.starts_with(MARK.as_bytes()) {
                self.bytes.drain(..MARK.len());
            }
            if !self.bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some(&self.bytes));
            }
        }
    }

    /// Returns the place of the one read last: `line` or `element`, and its number.
    pub(super) fn at(&self) -> (&'static str, u64) {
        (self.unit, self.line)
    }

    /// Returns the same in words, with the file.
    pub(super) fn place(&self) -> String {
        format!("{}, {} {}", self.path.display(), self.unit, self.line)
    }

    /// Whether each line is an object.
    pub(super) fn are_lines(&self) -> bool {
        self.unit == LINE
    }

    /// Whether another object or array follows the first one in the line read last.
    pub(super) fn has_several(&self) -> bool {
        let mut values = serde_json::Deserializer::from_slice(&self.bytes).into_iter::<IgnoredAny>();
        let is_whole = values.next().is_some_and(|first| first.is_ok());
        let rest = self.bytes.get(values.byte_offset()..).unwrap_or_default();
        is_whole && matches!(rest.trim_ascii_start().first(), Some(b'{' | b'['))
    }

    /// Returns the error for a line with several objects, which are not counted.
    pub(super) fn several(&self) -> DataError {
        DataError::Malformed {
            path: self.path.clone(),
            format: "JSON lines",
            place: format!("line {}", self.line),
            reason: format!(
                "it is an array or several objects, and no single object: {} makes lines of all of it",
                command(self.packing, EACH, "OUT.jsonl")
            ),
        }
    }

    /// Returns the error of a reader: that of the file, or of its array, which is refused as a whole.
    fn refused(&self, error: io::Error) -> DataError {
        let broken = match error.downcast::<NoElement>() {
            Ok(broken) => broken,
            Err(error) => return DataError::io("read", &self.path)(error),
        };
        let remedy = match broken.what {
            Broken::Behind => {
                format!("; {} makes lines of all of it", command(self.packing, EACH, "OUT.jsonl"))
            }
            Broken::End => String::new(),
            _ => "; mend it there, for elements from there on are not counted".to_owned(),
        };
        DataError::Malformed {
            path: self.path.clone(),
            format: "a JSON array",
            place: format!("line {}, behind element {}", broken.line, self.line.saturating_sub(1)),
            reason: format!("{broken}{remedy}"),
        }
    }

    pub(super) fn position(&self) -> &Position {
        &self.position
    }
}

/// Returns the first byte that is not blank, and its line; `None`: there is none.
fn first_of(reader: &mut dyn Read) -> io::Result<(Option<u8>, u64)> {
    let (mut byte, mut line) = ([0], 1);
    while reader.read(&mut byte)? > 0 {
        if !byte[0].is_ascii_whitespace() {
            return Ok((Some(byte[0]), line));
        }
        line += u64::from(byte[0] == b'\n');
    }
    Ok((None, line))
}
