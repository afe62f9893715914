//! Columnar tables: Parquet, and Arrow files and streams.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, Schema};
use longhaul_common::config::Column;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;

use super::arrow_sizes::{check_file, check_stream};
use super::ends::{check_ends, check_joined};
use super::json_values;
use super::no_text::{elsewhere, instead, is_text, known};
use super::raw_texts::RawTexts;
use super::table_file::TableFile;
use crate::notes::{Notes, UnreadColumns};
use crate::records::encoding::NotUtf8;
use crate::records::known::shown;
use crate::records::{Record, Records, faults};
use crate::unwound::unwound;
use crate::{DataError, Recipe};

/// Rows of a Parquet file decoded at once.
const BATCH_ROWS: usize = 1024;
/// The first bytes of an Arrow file, which a stream lacks.
const ARROW_MAGIC: &[u8; 6] = b"ARROW1";

/// The text of a row, or the cause of its failure.
type Text = Result<String, Cow<'static, str>>;

/// The format's name in messages.
const ARROW: &str = "Arrow";

const NULL: Cow<'static, str> = Cow::Borrowed("it is null");

pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

/// The texts of one column.
pub(super) struct Columns {
    table: TableFile,
    format: &'static str,
    batches: Batches,
    /// Raw reader of a Parquet file, in use after its first text that is not UTF-8.
    raw: Option<RawTexts>,
    /// Index of a Parquet file's column in its schema.
    column: Option<usize>,
    /// Rest of the last decoded batch.
    texts: VecDeque<Text>,
    separator: String,
    row: u64,
    /// Rows of the file, if declared.
    rows: Option<u64>,
    /// The other columns.
    unread: UnreadColumns,
}

impl Columns {
    /// Opens a Parquet file.
    pub(super) fn parquet(table: TableFile, recipe: &Recipe) -> Result<Self, DataError> {
        let mut unread = UnreadColumns::default();
        let choose = |schema: &Schema| {
            let column = find(schema, recipe, &table.path)?;
            unread = UnreadColumns::of(others(schema, column));
            Ok(vec![column])
        };
        let (batches, columns, rows) = parquet_batches(&table, choose)?;
        let column = columns.first().copied();
        Ok(Self { column, unread, ..Self::new(table, "Parquet", batches, recipe, rows) })
    }

    /// Opens an Arrow file or stream.
    pub(super) fn arrow(table: TableFile, recipe: &Recipe) -> Result<Self, DataError> {
        let mut unread = UnreadColumns::default();
        let choose = |schema: &Schema| {
            let column = find(schema, recipe, &table.path)?;
            unread = UnreadColumns::of(others(schema, column));
            Ok(vec![column])
        };
        let batches = arrow_batches(&table, choose)?;
        Ok(Self { unread, ..Self::new(table, ARROW, batches, recipe, None) })
    }

    fn new(
        table: TableFile,
        format: &'static str,
        batches: Batches,
        recipe: &Recipe,
        rows: Option<u64>,
    ) -> Self {
        let separator = recipe.separator.clone();
        let (raw, column, texts) = (None, None, VecDeque::new());
        let unread = UnreadColumns::default();
        Self { table, format, batches, raw, column, texts, separator, row: 0, rows, unread }
    }

    /// Returns the texts of the next rows, possibly none; `None` at the end.
    fn next_texts(&mut self) -> Result<Option<Vec<Text>>, DataError> {
        if self.raw.is_none() {
            let next = || Ok(self.batches.next().transpose()?.map(|batch| texts(batch.column(0))));
            match (guarded(next), self.column) {
                (Ok(batch), _) => return Ok(batch),
                (Err(error), Some(column)) if is_of_encoding(&error) => {
                    let (file, row) = (self.table.rewound()?, self.row);
                    let raw = unwound(|| RawTexts::open(file, column, row), ParquetError::General);
                    self.raw = Some(raw.map_err(|error| self.refused(&error))?);
                }
                (Err(error), _) => return Err(self.refused(&error)),
            }
        }
        let Some(raw) = &mut self.raw else { return Ok(None) };
        let rows = unwound(|| raw.next_rows(BATCH_ROWS), ParquetError::General);
        let rows = rows.map_err(|error| self.refused(&error))?;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|error| not_utf8(&error));
        let texts: Vec<Text> = rows.into_iter().map(|bytes| bytes.ok_or(NULL).and_then(text)).collect();
        Ok((!texts.is_empty()).then_some(texts))
    }

    fn refused(&self, error: &dyn std::error::Error) -> DataError {
        if self.format == ARROW && is_of_encoding(error) {
            let reason = "a text is not UTF-8, and the batch that it is in cannot be read, so that data.bad_records_max does not help: write the table anew without that row, or decode it (`pyarrow`: `column.cast(\"binary\")`)";
            let (path, place) = (self.table.path.clone(), format!("after row {}", self.row));
            return DataError::Malformed { path, format: ARROW, place, reason: reason.to_owned() };
        }
        malformed(&self.table.path, self.format, self.row, error)
    }
}

/// Opens the chosen columns of a Parquet file; returns these and the number of rows too.
pub(super) fn parquet_batches(
    table: &TableFile,
    choose: impl FnOnce(&Schema) -> Result<Vec<usize>, DataError>,
) -> Result<(Batches, Vec<usize>, Option<u64>), DataError> {
    check_ends(table)?;
    let (path, file) = (table.path.as_path(), table.rewound()?);
    let refused = |error: ArrowError| malformed(path, "Parquet", 0, &error);
    let builder = guarded(|| Ok(ParquetRecordBatchReaderBuilder::try_new(file)?)).map_err(refused)?;
    check_joined(table, builder.metadata())?;
    let columns = choose(builder.schema())?;
    json_values::refuse(path, builder.schema(), &columns)?;
    json_values::refuse_in_parquet(path, builder.parquet_schema(), &columns)?;
    let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).ok();
    let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
    let reader = guarded(|| Ok(builder.with_projection(mask).with_batch_size(BATCH_ROWS).build()?));
    Ok((Box::new(reader.map_err(refused)?), columns, rows))
}

/// Opens the chosen columns of an Arrow file or stream.
pub(super) fn arrow_batches(
    table: &TableFile,
    choose: impl FnOnce(&Schema) -> Result<Vec<usize>, DataError>,
) -> Result<Batches, DataError> {
    let path = table.path.as_path();
    let mut magic = Vec::new();
    let read = table.rewound()?.take(ARROW_MAGIC.len() as u64).read_to_end(&mut magic);
    read.map_err(DataError::io("read", path))?;
    let refused = |error: ArrowError| malformed(path, ARROW, 0, &error);
    let file = || table.rewound().map(BufReader::new);
    if magic == ARROW_MAGIC {
        check_file(&mut file()?).map_err(|error| unsound(path, error))?;
        let open = |file, columns| guarded(|| FileReader::try_new(file, columns)).map_err(refused);
        let schema = open(file()?, None)?.schema();
        let columns = choose(&schema)?;
        json_values::refuse(path, &schema, &columns)?;
        return Ok(Box::new(open(file()?, Some(columns))?));
    }
    check_stream(&mut file()?).map_err(|error| unsound(path, error))?;
    let open = |file, columns| guarded(|| StreamReader::try_new(file, columns)).map_err(refused);
    let schema = open(file()?, None)?.schema();
    let columns = choose(&schema)?;
    json_values::refuse(path, &schema, &columns)?;
    Ok(Box::new(open(file()?, Some(columns))?))
}

/// Whether a reader's message reports a text that is not UTF-8.
fn is_of_encoding(error: &dyn std::error::Error) -> bool {
    let message = error.to_string().to_ascii_lowercase();
    message.contains("utf-8") || message.contains("utf8")
}

impl Records for Columns {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        while self.texts.is_empty() {
            let Some(texts) = self.next_texts()? else { return Ok(None) };
            self.texts = texts.into();
        }
        let Some(text) = self.texts.pop_front() else { return Ok(None) };
        self.row += 1;
        Ok(Some(match text.and_then(faults::checked) {
            Ok(text) => {
                self.unread.see_row();
                Record::Text(text + &self.separator)
            }
            Err(reason) => Record::bad(format!("{}, row {}: {reason}", self.table.path.display(), self.row)),
        }))
    }

    fn read_bytes(&self) -> u64 {
        // Readers seek in such a file: the progress follows its rows.
        let share = self.rows.filter(|rows| *rows > 0).map_or(0.0, |rows| self.row as f64 / rows as f64);
        (self.table.size as f64 * share.min(1.0)) as u64
    }

    fn take_notes(&mut self) -> Notes {
        let mut notes = Notes::default();
        self.unread.note(&mut notes);
        notes
    }
}

/// Calls a reader, which panics on some kinds of damage, and returns its result.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    unwound(read, ArrowError::ParseError)
}

/// Returns the message for invalid UTF-8, with a remedy for tables.
fn not_utf8(error: &std::string::FromUtf8Error) -> Cow<'static, str> {
    let found = NotUtf8::new(error.as_bytes(), error.utf8_error(), false).within("its text");
    format!("it is {found}: write the table anew with that text decoded, or without the row").into()
}

/// Returns the error for a table whose reader suggests no remedy.
pub(super) fn malformed(
    path: &Path,
    format: &'static str,
    row: u64,
    error: &dyn std::error::Error,
) -> DataError {
    /// The library's error for a compression missing from the build.
    const WITHOUT: &str = "Disabled feature at compile time: ";
    let place = if row == 0 { DESCRIPTION.to_owned() } else { format!("after row {row}") };
    let words = error.to_string();
    let reason = match words.split_once(WITHOUT) {
        Some((_, codec)) => {
            format!("it is compressed with {codec}, which is not read: write it with zstd or snappy")
        }
        None if words.contains("metadata versions mismatch") => format!(
            "{words}: it is of an old version: write it anew (`pyarrow.feather.write_feather(pyarrow.feather.read_table(IN), OUT)`)"
        ),
        None => format!("{words}; fetch it again, or write it anew"),
    };
    DataError::Malformed { path: path.to_owned(), format, place, reason }
}

/// Returns the error for an Arrow file refused before it is read.
fn unsound(path: &Path, error: ArrowError) -> DataError {
    let reason = match error {
        ArrowError::IpcError(reason) => reason,
        // It ends before its start, or before the requested bytes.
        ArrowError::IoError(_, error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput) =>
        {
            "it is cut off: fetch it again".to_owned()
        }
        error => return malformed(path, ARROW, 0, &error),
    };
    DataError::Malformed { path: path.to_owned(), format: ARROW, place: DESCRIPTION.to_owned(), reason }
}

/// The place of a table's schema, in words.
pub(super) const DESCRIPTION: &str = "its description";

/// Returns the names of the other columns.
fn others(schema: &Schema, column: usize) -> Vec<String> {
    let others = schema.fields().iter().enumerate().filter(|(at, _)| *at != column);
    others.map(|(_, field)| field.name().clone()).collect()
}

/// Returns the index of the column, which must hold text.
fn find(schema: &Schema, recipe: &Recipe, path: &Path) -> Result<usize, DataError> {
    let wanted = recipe.column.to_string();
    if let Column::Name(name) = &recipe.column {
        let called_so = schema.fields().iter().enumerate().filter(|(_, field)| field.name() == name);
        let places: Vec<usize> = called_so.map(|(index, _)| index + 1).collect();
        if let [first, second, ..] = places[..] {
            let reason = format!(
                "columns {first} and {second} are both called `{name}`: say column = {first} or {second}"
            );
            let (path, place) = (path.to_owned(), DESCRIPTION.to_owned());
            return Err(DataError::Malformed { path, format: "a table", place, reason });
        }
    }
    let index = match &recipe.column {
        Column::Name(name) => schema.index_of(name).ok(),
        Column::Number(number) => {
            (*number as usize).checked_sub(1).filter(|index| *index < schema.fields().len())
        }
    };
    let Some(index) = index else {
        let (known, remedy) = (known(schema), elsewhere(schema, &recipe.column));
        return Err(DataError::NoColumn { path: path.to_owned(), column: wanted, known, remedy });
    };
    check_number(schema, recipe, index, path)?;
    let kind = schema.field(index).data_type();
    if is_text(kind) {
        Ok(index)
    } else {
        let (kind, remedy) = (shown(&kind.to_string()), instead(schema, &recipe.column, index));
        Err(DataError::NotText { path: path.to_owned(), column: wanted, kind, remedy })
    }
}

/// Refuses a column number if the column has a usable name: its place may differ in another file of the source.
fn check_number(schema: &Schema, recipe: &Recipe, index: usize, path: &Path) -> Result<(), DataError> {
    let name = schema.field(index).name();
    let is_alone = schema.fields().iter().filter(|field| field.name() == name).count() == 1;
    if matches!(recipe.column, Column::Name(_)) || name.is_empty() || !is_alone {
        return Ok(());
    }
    let reason = format!("column {} is called `{name}`: say column = {name:?}", index + 1);
    Err(DataError::Malformed {
        path: path.to_owned(),
        format: "a table",
        place: DESCRIPTION.to_owned(),
        reason,
    })
}

/// Returns the texts of an array of a type that [`is_text`].
fn texts(array: &dyn Array) -> Vec<Text> {
    let owned = |text: Option<&str>| text.map(str::to_owned).ok_or(NULL);
    match array.data_type() {
        DataType::LargeUtf8 => array.as_string::<i64>().iter().map(owned).collect(),
        DataType::Utf8View => array.as_string_view().iter().map(owned).collect(),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.values().is_empty() {
                return vec![Err(NULL); array.len()];
            }
            let values = texts(dictionary.values());
            let keys = dictionary.normalized_keys().into_iter().enumerate();
            keys.map(|(row, key)| if array.is_null(row) { Err(NULL) } else { values[key].clone() }).collect()
        }
        _ => array.as_string::<i32>().iter().map(owned).collect(),
    }
}
