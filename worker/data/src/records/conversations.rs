//! Conversations in JSON lines, or in a JSON array.

use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::elements::Elements;
use super::input::{Input, Position};
use super::json_lines::parse;
use super::{Record, Records};
use crate::DataError;
use crate::bounds::RECORD_BYTES_MAX;
use crate::chat::{Chat, RowReader};

/// The conversations of a file.
pub(super) struct Conversations {
    path: PathBuf,
    lines: BufReader<Box<dyn Read>>,
    position: Position,
    rows: RowReader,
    line: u64,
    /// `line`, or `element` of an array.
    unit: &'static str,
    bytes: Vec<u8>,
}

impl Conversations {
    /// Reads the beginning of a file: an array or lines.
    pub(super) fn new(input: Input, chat: &Chat) -> Result<Self, DataError> {
        let Input { path, mut reader, position, .. } = input;
        let first = first_of(&mut reader).map_err(DataError::io("read", &path))?;
        let (lines, unit): (Box<dyn Read>, _) = match first {
            Some(b'[') => (Box::new(Elements::new(reader)), "element"),
            first => (Box::new(Cursor::new(Vec::from_iter(first)).chain(reader)), "line"),
        };
        let rows = RowReader::new(chat, &path);
        let (lines, bytes) = (BufReader::new(lines), Vec::new());
        Ok(Self { path, lines, position, rows, line: 0, unit, bytes })
    }

    /// Returns the place of the line read last.
    fn place(&self) -> String {
        format!("{}, {} {}", self.path.display(), self.unit, self.line)
    }
}

/// Returns the first byte that is not blank; `None`: there is none.
fn first_of(reader: &mut dyn Read) -> std::io::Result<Option<u8>> {
    let mut byte = [0];
    while reader.read(&mut byte)? > 0 {
        if !byte[0].is_ascii_whitespace() {
            return Ok(Some(byte[0]));
        }
    }
    Ok(None)
}

impl Records for Conversations {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let read = self.lines.by_ref().take(RECORD_BYTES_MAX).read_until(b'\n', &mut self.bytes);
            let read = read.map_err(DataError::io("read", &self.path))? as u64;
            if read == 0 {
                return Ok(None);
            }
            if read == RECORD_BYTES_MAX && !self.bytes.ends_with(b"\n") {
                return Err(DataError::Malformed {
                    path: self.path.clone(),
                    format: "JSON",
                    place: format!("{} {}", self.unit, self.line),
                    reason: format!(
                        "it has more than {RECORD_BYTES_MAX} bytes: a conversation is one record"
                    ),
                });
            }
            if self.bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let bad = |reason: String| Ok(Some(Record::bad(format!("{}: {reason}", self.place()))));
            let row: Value = match parse(&self.bytes) {
                Ok(row) => row,
                Err(error) => return bad(format!("it is no JSON: {error}")),
            };
            if row.kind() != ValueKind::Map {
                return bad("it is no JSON object".to_owned());
            }
            let place = self.place();
            return Ok(Some(match self.rows.read(&row)? {
                Ok(conversation) => Record::Conversation { conversation, place },
                Err(reason) => Record::bad(format!("{place}: {reason}")),
            }));
        }
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }
}
