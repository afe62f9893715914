//! Conversations in JSON lines, or in a JSON array.

use std::path::PathBuf;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::input::Input;
use super::objects::Objects;
use super::{Record, Records};
use crate::DataError;
use crate::chat::{Chat, RowReader, parse_json};

/// The conversations of a file.
pub(super) struct Conversations {
    objects: Objects,
    rows: RowReader,
}

impl Conversations {
    /// Reads the beginning of a file: an array or lines.
    pub(super) fn new(input: Input, chat: &Chat) -> Result<Self, DataError> {
        let path: PathBuf = input.path.clone();
        Ok(Self { objects: Objects::new(input)?, rows: RowReader::new(chat, &path) })
    }
}

impl Records for Conversations {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let Some(bytes) = self.objects.next()? else { return Ok(None) };
        let row: Result<Value, _> = parse_json(bytes);
        let place = self.objects.place();
        let row = match row {
            Ok(row) if row.kind() == ValueKind::Map => row,
            Ok(row) if self.objects.are_lines() && row.kind() == ValueKind::Seq => {
                return Err(self.objects.several());
            }
            Err(_) if self.objects.are_lines() && self.objects.has_several() => {
                return Err(self.objects.several());
            }
            Ok(_) => return Ok(Some(Record::bad(format!("{place}: it is no JSON object")))),
            Err(error) => return Ok(Some(Record::bad(format!("{place}: it is no JSON: {error}")))),
        };
        Ok(Some(match self.rows.read(&row)? {
            Ok(conversation) => Record::Conversation { conversation, place },
            Err(reason) => Record::bad(format!("{place}: {reason}")),
        }))
    }

    fn read_bytes(&self) -> u64 {
        self.objects.position().bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.objects.position().content_bytes()
    }
}
