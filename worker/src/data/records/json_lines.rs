//! JSON objects, one a line.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use serde_json::Value;

use super::input::{Input, Position};
use super::{RECORD_BYTES_MAX, Record, Records, listed};
use crate::data::{DataError, Recipe};

/// The texts of one field.
pub(super) struct JsonLines {
    path: PathBuf,
    lines: BufReader<Box<dyn Read>>,
    position: Position,
    field: String,
    separator: String,
    line: u64,
    bytes: Vec<u8>,
}

impl JsonLines {
    pub(super) fn new(input: Input, recipe: &Recipe) -> Self {
        Self {
            path: input.path,
            lines: BufReader::new(input.reader),
            position: input.position,
            field: recipe.field.clone(),
            separator: recipe.separator.clone(),
            line: 0,
            bytes: Vec::new(),
        }
    }

    /// The text of the line that was read, or what is wrong with it.
    fn text(&self) -> Result<String, String> {
        let value: Value =
            serde_json::from_slice(&self.bytes).map_err(|error| format!("it is no JSON: {error}"))?;
        let Value::Object(mut object) = value else { return Err("it is no JSON object".to_owned()) };
        match object.remove(&self.field) {
            Some(Value::String(text)) => Ok(text + &self.separator),
            Some(_) => Err(format!("its field `{}` is no text", self.field)),
            None => {
                let known = listed(object.keys().map(String::as_str));
                Err(format!("it has no field `{}`; its fields are {known}", self.field))
            }
        }
    }
}

impl Records for JsonLines {
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
                    format: "JSON lines",
                    place: format!("line {}", self.line),
                    reason: format!("the line has more than {RECORD_BYTES_MAX} bytes"),
                });
            }
            if self.bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let bad = |reason| Record::Bad(format!("{}, line {}: {reason}", self.path.display(), self.line));
            return Ok(Some(self.text().map_or_else(bad, Record::Text)));
        }
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }
}
