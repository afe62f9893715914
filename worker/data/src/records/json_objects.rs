//! Rows in JSON lines, or in a JSON array: conversations, or labelled texts.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::input::Input;
use super::objects::Objects;
use super::record_reader::RecordReader;
use super::{Record, Records};
use crate::DataError;
use crate::chat::parse_json;
use crate::notes::Notes;
use crate::repeated::repeated_key;

/// The rows of a file.
pub(super) struct JsonObjects {
    objects: Objects,
    rows: RecordReader,
}

impl JsonObjects {
    /// Reads the beginning of a file: an array or lines.
    pub(super) fn new(input: Input, rows: RecordReader) -> Result<Self, DataError> {
        Ok(Self { objects: Objects::new(input)?, rows })
    }
}

impl Records for JsonObjects {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let Some(bytes) = self.objects.next()? else { return Ok(None) };
        let row: Result<Value, _> = parse_json(bytes);
        let repeated = row.is_ok().then(|| repeated_key(bytes)).flatten();
        let place = self.objects.place();
        let row = match row {
            Ok(row) if row.kind() == ValueKind::Map => match repeated {
                Some(reason) => return Ok(Some(Record::bad(format!("{place}: {reason}")))),
                None => row,
            },
            Ok(row) if self.objects.are_lines() && row.kind() == ValueKind::Seq => {
                return Err(self.objects.several());
            }
            Err(_) if self.objects.are_lines() && self.objects.has_several() => {
                return Err(self.objects.several());
            }
            Ok(_) => return Ok(Some(Record::bad(format!("{place}: it is no JSON object")))),
            Err(error) => return Ok(Some(Record::bad(format!("{place}: it is no JSON: {error}")))),
        };
        self.rows.read(&row, place).map(Some)
    }

    fn read_bytes(&self) -> u64 {
        self.objects.position().bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.objects.position().content_bytes()
    }

    fn take_notes(&mut self) -> Notes {
        self.rows.take_notes()
    }
}
