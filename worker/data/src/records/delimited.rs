//! Values with commas or tabs between them.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv::ByteRecord;
use longhaul_common::config::Column;

use super::input::{Input, Position};
use super::rows::{Row, Rows};
use super::{RECORD_BYTES_MAX, Record, Records, listed};
use crate::counted::counted;
use crate::{DataError, Recipe};

/// The texts of one column.
pub(super) struct Delimited {
    path: PathBuf,
    reader: csv::Reader<Watched>,
    /// What may be read until the row ends.
    left: Rc<Cell<u64>>,
    rows: Rc<RefCell<Rows>>,
    position: Position,
    column: usize,
    /// Values that each row has, and whose number that is.
    width: Option<(usize, &'static str)>,
    separator: String,
    row: ByteRecord,
}

impl Delimited {
    pub(super) fn new(input: Input, recipe: &Recipe) -> Result<Self, DataError> {
        let Input { path, reader, position, .. } = input;
        let left = Rc::new(Cell::new(RECORD_BYTES_MAX));
        let rows = Rc::new(RefCell::new(Rows::new(recipe.dialect)));
        let watched = Watched { reader, left: Rc::clone(&left), rows: Rc::clone(&rows) };
        let is_named = matches!(recipe.column, Column::Name(_));
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(recipe.dialect.delimiter)
            .quoting(recipe.dialect.quote.is_some())
            .quote(recipe.dialect.quote.unwrap_or(b'"'))
            .escape(recipe.dialect.escape)
            // A row of another length is a record that is bad, not the end of the file.
            .flexible(true)
            .has_headers(is_named)
            .from_reader(watched);
        let (column, width) = match &recipe.column {
            Column::Number(number) => ((*number as usize).saturating_sub(1), None),
            Column::Name(name) => {
                let header = reader.byte_headers().map_err(|error| malformed(&path, 1, error.to_string()))?;
                let (column, width) = (place_of(name, header, &path)?, header.len());
                if let Some(fault) =
                    rows.borrow_mut().take(reader.position().byte()).and_then(|row| row.fault)
                {
                    return Err(malformed(&path, 1, fault.to_owned()));
                }
                (column, Some((width, "the head")))
            }
        };
        let (separator, row) = (recipe.separator.clone(), ByteRecord::new());
        Ok(Self { path, reader, left, rows, position, column, width, separator, row })
    }

    /// The text of the row that was read, or what is wrong with it.
    fn text(&mut self, fault: Option<&'static str>) -> Result<String, String> {
        if let Some(fault) = fault {
            return Err(fault.to_owned());
        }
        let values = self.row.len();
        let Some(cell) = self.row.get(self.column) else {
            let columns = counted(values as u64, "column");
            return Err(format!("it has {columns}, and column {} was asked for", self.column + 1));
        };
        let (width, whose) = *self.width.get_or_insert((values, "the first row"));
        if values != width {
            let values = counted(values as u64, "value");
            return Err(format!(
                "it has {values}, and {whose} has {width}: is there a delimiter in a text without quotes around it?"
            ));
        }
        let text = str::from_utf8(cell).map_err(|_| "it is not UTF-8".to_owned())?;
        // A file that was cut off may show it beside the text alone.
        if let Some(other) = self.row.iter().position(|cell| str::from_utf8(cell).is_err()) {
            return Err(format!("column {} is not UTF-8", other + 1));
        }
        Ok(format!("{text}{}", self.separator))
    }
}

/// Where the column of this name is.
fn place_of(name: &str, header: &ByteRecord, path: &Path) -> Result<usize, DataError> {
    let mut places =
        header.iter().enumerate().filter(|(_, cell)| *cell == name.as_bytes()).map(|(place, _)| place);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(first), Some(second)) => {
            let reason = format!(
                "columns {} and {} are both called `{name}`: say column = {} or {}, and leave out the head",
                first + 1,
                second + 1,
                first + 1,
                second + 1
            );
            Err(malformed(path, 1, reason))
        }
        (None, _) => Err(DataError::NoColumn {
            path: path.to_owned(),
            column: format!("`{name}`"),
            known: listed(header.iter().map(|cell| str::from_utf8(cell).unwrap_or("(no UTF-8)"))),
        }),
    }
}

impl Records for Delimited {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        self.left.set(RECORD_BYTES_MAX);
        let read = self.reader.read_byte_record(&mut self.row);
        let line = self.reader.position().line();
        if !read.map_err(|error| malformed(&self.path, line, error.to_string()))? {
            return Ok(None);
        }
        let row = self.rows.borrow_mut().take(self.reader.position().byte());
        let text = self.text(row.and_then(|row| row.fault));
        Ok(Some(text.map_or_else(
            |reason| {
                let lines = match row {
                    Some(Row { first, last, .. }) if last > first => format!("lines {first} to {last}"),
                    row => format!("line {}", row.map_or(line, |row| row.first)),
                };
                let count = row.map_or(1, |row| row.counts_for());
                Record::Bad { reason: format!("{}, {lines}: {reason}", self.path.display()), count }
            },
            Record::Text,
        )))
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }
}

fn malformed(path: &Path, line: u64, reason: String) -> DataError {
    DataError::Malformed { path: path.to_owned(), format: "a table", place: format!("line {line}"), reason }
}

/// Refuses to read more than it may, and has rows looked at.
struct Watched {
    reader: Box<dyn Read>,
    left: Rc<Cell<u64>>,
    rows: Rc<RefCell<Rows>>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            let reason = format!("a row has more than {RECORD_BYTES_MAX} bytes; is a quote not closed?");
            return Err(io::Error::other(reason));
        }
        let wanted = buffer.len().min(usize::try_from(self.left.get()).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut buffer[..wanted])?;
        self.rows.borrow_mut().see(&buffer[..read]);
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}
