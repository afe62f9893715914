//! The rows of a table with all their columns of types that are read.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};

use super::columns::{Batches, arrow_batches, guarded, malformed, parquet_batches};
use super::json_values;
use super::table_file::TableFile;
use super::table_records::row_of;
use crate::DataError;
use crate::records::known::shown;
use crate::records::whole_rows::{Row, UnreadColumn, WholeRow, WholeRows};

/// Opens a Parquet file, or one of Arrow.
///
/// # Errors
/// It cannot be read, or is no such table.
pub(in crate::records) fn open(path: &Path, is_parquet: bool) -> Result<WholeRows, DataError> {
    let table = TableFile::open(path)?;
    if table.size == 0 {
        return Err(DataError::empty(path));
    }
    let mut unread: Rc<[UnreadColumn]> = Rc::new([]);
    let read = |schema: &Schema| {
        let fields = schema.fields().iter().enumerate();
        let (read, others): (Vec<_>, Vec<_>) = fields.partition(|(_, field)| is_read(field));
        if !others.is_empty() {
            let unread_column = |(_, field): &(usize, &Arc<Field>)| UnreadColumn {
                name: field.name().clone(),
                reason: shown(&field.data_type().to_string()),
            };
            unread = others.iter().map(unread_column).collect();
            let columns = unread.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            tracing::info!(file = %path.display(), columns, "columns of these types are not read");
        }
        Ok(read.into_iter().map(|(at, _)| at).collect())
    };
    let (format, batches) = match is_parquet {
        true => ("Parquet", parquet_batches(&table, read)?.0),
        false => ("Arrow", arrow_batches(&table, read)?),
    };
    Ok(Box::new(TableRows {
        table,
        format,
        batches,
        rows: VecDeque::new(),
        row: 0,
        unread,
        has_ended: false,
    }))
}

/// Whether the values of a field are read.
fn is_read(field: &Field) -> bool {
    json_values::within(field).is_none() && is_type_read(field.data_type())
}

fn is_type_read(kind: &DataType) -> bool {
    match kind {
        DataType::Null | DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            true
        }
        DataType::Float32 | DataType::Float64 => true,
        DataType::Dictionary(_, values) => is_type_read(values),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_type_read(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|field| is_type_read(field.data_type())),
        kind => kind.is_integer(),
    }
}

struct TableRows {
    table: TableFile,
    format: &'static str,
    batches: Batches,
    /// Rest of the last decoded batch.
    rows: VecDeque<Result<Row, String>>,
    row: u64,
    unread: Rc<[UnreadColumn]>,
    has_ended: bool,
}

impl Iterator for TableRows {
    type Item = Result<WholeRow, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.rows.is_empty() && !self.has_ended {
            match guarded(|| self.batches.next().transpose()) {
                Ok(Some(batch)) => {
                    let row = |row| {
                        let values = row_of(&batch, row)?;
                        match serde_json::to_value(values).map_err(|error| error.to_string())? {
                            serde_json::Value::Object(row) => Ok(row),
                            _ => Err("it has no columns".to_owned()),
                        }
                    };
                    self.rows = (0..batch.num_rows()).map(row).collect();
                }
                Ok(None) => self.has_ended = true,
                Err(error) => {
                    self.has_ended = true;
                    return Some(Err(malformed(&self.table.path, self.format, self.row, &error)));
                }
            }
        }
        let row = self.rows.pop_front()?;
        self.row += 1;
        Some(Ok(WholeRow { unit: "row", number: self.row, row, unread: Rc::clone(&self.unread) }))
    }
}
