//! The rows of a local file with all their columns: JSON lines or an array, CSV, TSV, Parquet, Arrow.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv::StringRecord;
use longhaul_common::config::{DataFormat, Dialect};
use serde_json::{Map, Value};

use super::content;
use super::input::{Input, MARK, Told};
use super::objects::Objects;
use super::prose::archive_of_web;
use super::tables;
use super::watched::{Watch, Watched};
use crate::DataError;
use crate::json::parse;
use crate::repeated::repeated_key;

/// A row, by the names of its columns.
pub(crate) type Row = Map<String, Value>;

/// A row with its place.
pub(crate) struct WholeRow {
    /// `line`, `element` or `row`.
    pub(crate) unit: &'static str,
    /// Its number, from 1.
    pub(crate) number: u64,
    /// The row, or the cause of its failure.
    pub(crate) row: Result<Row, String>,
    /// The file's columns that are not read, each with the reason.
    pub(crate) unread: Rc<[UnreadColumn]>,
}

/// A column that is not read.
#[derive(Debug)]
pub(crate) struct UnreadColumn {
    pub(crate) name: String,
    /// Why: its type, or that another one has its name.
    pub(crate) reason: String,
}

/// `image (Struct("bytes": Binary, "path": Utf8))`
impl fmt::Display for UnreadColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.reason)
    }
}

/// The rows of a file.
pub(crate) type WholeRows = Box<dyn Iterator<Item = Result<WholeRow, DataError>>>;

/// Names the columns of a CSV file without a head, given its first row; `None`: that row is the head.
pub(crate) type Headless = fn(&StringRecord) -> Option<StringRecord>;

/// A format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowFormat {
    Json,
    Delimited(u8),
    Parquet,
    Arrow,
}

impl RowFormat {
    /// Returns the format that a file's extension names, before one of a compression; `None`: of no rows.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let name = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        Some(match name.rsplit_once('.')?.1 {
            "jsonl" | "json" | "ndjson" => Self::Json,
            "csv" => Self::Delimited(b','),
            "tsv" => Self::Delimited(b'\t'),
            "parquet" => Self::Parquet,
            "arrow" | "feather" => Self::Arrow,
            _ => return None,
        })
    }
}

/// Opens a file.
///
/// # Errors
/// It cannot be read, or is of another format.
pub(crate) fn open(path: &Path, format: RowFormat, headless: Headless) -> Result<WholeRows, DataError> {
    match format {
        RowFormat::Json => {
            let objects = Objects::new(checked(path, DataFormat::Jsonl)?)?;
            Ok(Box::new(JsonRows { objects, has_failed: false }))
        }
        RowFormat::Delimited(delimiter) => delimited(path, delimiter, headless),
        RowFormat::Parquet => tables::whole_rows(path, true),
        RowFormat::Arrow => tables::whole_rows(path, false),
    }
}

/// Opens a file of text behind its byte order mark, and refuses it if its first bytes are of something else.
fn checked(path: &Path, format: DataFormat) -> Result<Input, DataError> {
    let mut input = Input::open(path, Told::ByContent)?;
    let head = input.ahead(content::HEAD_BYTES as u64)?;
    let other = |what: String| {
        // There is no key for the format here.
        let (what, remedy) = match what.split_once(": say format = ") {
            Some((what, _)) => (what, ": its name must end as its format does"),
            None => (what.as_str(), ""),
        };
        DataError::OtherContent { path: path.to_owned(), what: format!("{what}{remedy}") }
    };
    content::check(&head, format, true).map_err(other)?;
    if head.starts_with(MARK.as_bytes()) {
        let mark = io::copy(&mut input.reader.by_ref().take(MARK.len() as u64), &mut io::sink());
        mark.map_err(DataError::io("read", path))?;
    }
    Ok(input)
}

struct JsonRows {
    objects: Objects,
    has_failed: bool,
}

impl Iterator for JsonRows {
    type Item = Result<WholeRow, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let row = match self.objects.next() {
            Ok(bytes) => {
                let bytes = bytes?;
                match parse::<Value>(bytes) {
                    Ok(Value::Object(row)) => repeated_key(bytes).map_or(Ok(row), Err),
                    Ok(_) => Err("it is no JSON object".to_owned()),
                    Err(error) => Err(format!("it is no JSON: {error}")),
                }
            }
            Err(error) => {
                self.has_failed = true;
                return Some(Err(error));
            }
        };
        let (unit, number) = self.objects.at();
        Some(Ok(WholeRow { unit, number, row, unread: Rc::new([]) }))
    }
}

/// Opens a table with this byte between values (RFC 4180).
fn delimited(path: &Path, delimiter: u8, headless: Headless) -> Result<WholeRows, DataError> {
    let input = checked(path, DataFormat::Csv)?;
    let dialect = Dialect { delimiter, quote: Some(b'"'), escape: None };
    let watch = Watch::new(dialect);
    let watched = Watched { reader: input.reader, watch: watch.clone() };
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader.delimiter(delimiter).flexible(true).has_headers(false).from_reader(watched);
    let mut rows = DelimitedRows {
        path: path.to_owned(),
        reader,
        watch,
        head: StringRecord::new(),
        read: Vec::new(),
        unread: Rc::new([]),
        first: None,
    };
    let (line, first) = rows.read()?.ok_or_else(|| DataError::empty(path))?;
    let first = first.map_err(|reason| rows.malformed(line, reason))?;
    rows.head = match headless(&first) {
        Some(head) => {
            rows.first = Some((line, Ok(first)));
            head
        }
        None => first,
    };
    let is_twice = |name: &&str| rows.head.iter().filter(|other| other == name).count() > 1;
    let twice: BTreeSet<&str> = rows.head.iter().filter(is_twice).collect();
    let unread = |name: &&str| UnreadColumn { name: (*name).to_owned(), reason: "two columns".to_owned() };
    rows.unread = twice.iter().map(unread).collect();
    rows.read = rows.head.iter().map(|name| !twice.contains(name)).collect();
    Ok(Box::new(rows))
}

/// A row with its first line, or its fault.
type Numbered = (u64, Result<StringRecord, String>);

struct DelimitedRows {
    path: PathBuf,
    reader: csv::Reader<Watched>,
    watch: Watch,
    head: StringRecord,
    /// For each column, whether its name is its own.
    read: Vec<bool>,
    unread: Rc<[UnreadColumn]>,
    /// The first row of a file without a head.
    first: Option<Numbered>,
}

impl DelimitedRows {
    fn read(&mut self) -> Result<Option<Numbered>, DataError> {
        self.watch.begin_row();
        let mut record = StringRecord::new();
        let read = self.reader.read_record(&mut record);
        let line = self.reader.position().line();
        let refused = |error: csv::Error| {
            let line = error.position().map_or(line, csv::Position::line);
            self.malformed(line, format!("{error}; write it anew in UTF-8"))
        };
        if !read.map_err(refused)? {
            return Ok(None);
        }
        let row = self.watch.row_at(self.reader.position().byte());
        // There is no key for quotes here.
        let fault = row.and_then(|row| row.fault?.split(';').next()).map(str::to_owned);
        let line = row.map_or(line, |row| row.first);
        Ok(Some((line, fault.map_or(Ok(record), Err))))
    }

    fn row(&self, record: &StringRecord) -> Row {
        let values = self.head.iter().zip(record).zip(&self.read).filter(|(_, is_read)| **is_read);
        values.map(|((name, value), _)| (name.to_owned(), value.into())).collect()
    }

    fn malformed(&self, line: u64, reason: String) -> DataError {
        DataError::Malformed { path: self.path.clone(), format: "CSV", place: format!("line {line}"), reason }
    }
}

impl Iterator for DelimitedRows {
    type Item = Result<WholeRow, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.first.take().map_or_else(|| self.read(), |first| Ok(Some(first))).transpose()?;
        Some(next.map(|(number, record)| {
            let row = record.and_then(|record| match record.len() == self.head.len() {
                true => Ok(self.row(&record)),
                false => {
                    Err(format!("it has {} values, and the first row has {}", record.len(), self.head.len()))
                }
            });
            WholeRow { unit: "line", number, row, unread: Rc::clone(&self.unread) }
        }))
    }
}

/// Reads a file of plain text, decompressed, without a byte order mark; `None`: it has more than `bytes_max`.
///
/// # Errors
/// It cannot be read, is not UTF-8, or is an archive of the web.
pub(crate) fn whole_text(path: &Path, bytes_max: u64) -> Result<Option<String>, DataError> {
    let mut bytes = Vec::new();
    let reader = checked(path, DataFormat::Text)?.reader;
    reader.take(bytes_max + 1).read_to_end(&mut bytes).map_err(DataError::io("read", path))?;
    if bytes.len() as u64 > bytes_max {
        return Ok(None);
    }
    if let Some(what) = archive_of_web(&bytes) {
        return Err(DataError::OtherContent { path: path.to_owned(), what: what.to_owned() });
    }
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let (byte, remedy) =
            (error.as_bytes()[offset], "write it anew in UTF-8, or name a file of text".to_owned());
        DataError::NotUtf8 { path: path.to_owned(), offset: offset as u64, byte, remedy }
    })
}
