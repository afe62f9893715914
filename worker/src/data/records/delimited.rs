//! Values with commas or tabs between them.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv::ByteRecord;
use longhaul_common::config::Column;

use super::input::{Input, Position};
use super::{RECORD_BYTES_MAX, Record, Records, listed};
use crate::data::{DataError, Recipe};

/// The texts of one column.
pub(super) struct Delimited {
    path: PathBuf,
    rows: csv::Reader<Bounded>,
    /// What may be read until the row ends.
    left: Rc<Cell<u64>>,
    position: Position,
    column: usize,
    separator: String,
    row: ByteRecord,
}

impl Delimited {
    pub(super) fn new(input: Input, delimiter: u8, recipe: &Recipe) -> Result<Self, DataError> {
        let left = Rc::new(Cell::new(RECORD_BYTES_MAX));
        let bounded = Bounded { reader: input.reader, left: Rc::clone(&left) };
        let is_named = matches!(recipe.column, Column::Name(_));
        let mut rows = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            // A row of another length is a record that is bad, not the end of the file.
            .flexible(true)
            .has_headers(is_named)
            .from_reader(bounded);
        let column = match &recipe.column {
            Column::Number(number) => (*number as usize).saturating_sub(1),
            Column::Name(name) => {
                let header = rows.byte_headers().map_err(|error| malformed(&input.path, 1, &error))?;
                header.iter().position(|cell| cell == name.as_bytes()).ok_or_else(|| DataError::NoColumn {
                    path: input.path.clone(),
                    column: recipe.column.to_string(),
                    known: listed(header.iter().map(|cell| str::from_utf8(cell).unwrap_or("(no UTF-8)"))),
                })?
            }
        };
        Ok(Self {
            path: input.path,
            rows,
            left,
            position: input.position,
            column,
            separator: recipe.separator.clone(),
            row: ByteRecord::new(),
        })
    }

    /// The text of the row that was read, or what is wrong with it.
    fn text(&self) -> Result<String, String> {
        let cell = self.row.get(self.column).ok_or_else(|| {
            format!("it has {} columns, and column {} was asked for", self.row.len(), self.column + 1)
        })?;
        let text = str::from_utf8(cell).map_err(|_| "it is not UTF-8".to_owned())?;
        Ok(format!("{text}{}", self.separator))
    }
}

impl Records for Delimited {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        self.left.set(RECORD_BYTES_MAX);
        let read = self.rows.read_byte_record(&mut self.row);
        let line = self.rows.position().line();
        if !read.map_err(|error| malformed(&self.path, line, &error))? {
            return Ok(None);
        }
        let line = self.row.position().map_or(line, csv::Position::line);
        let bad = |reason| Record::Bad(format!("{}, line {line}: {reason}", self.path.display()));
        Ok(Some(self.text().map_or_else(bad, Record::Text)))
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }
}

fn malformed(path: &Path, line: u64, error: &csv::Error) -> DataError {
    DataError::Malformed {
        path: path.to_owned(),
        format: "a table",
        place: format!("line {line}"),
        reason: error.to_string(),
    }
}

/// Refuses to read more than it may.
struct Bounded {
    reader: Box<dyn Read>,
    left: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            let reason = format!("a row has more than {RECORD_BYTES_MAX} bytes; is a quote not closed?");
            return Err(io::Error::other(reason));
        }
        let wanted = buffer.len().min(usize::try_from(self.left.get()).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut buffer[..wanted])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}
