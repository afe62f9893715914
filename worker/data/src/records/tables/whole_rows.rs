//! The rows of a table with all their columns.

use std::collections::VecDeque;
use std::path::Path;

use arrow_schema::Schema;

use super::columns::{Batches, arrow_batches, guarded, malformed, parquet_batches};
use super::table_file::TableFile;
use super::table_records::row_of;
use crate::DataError;
use crate::records::whole_rows::{Row, WholeRow, WholeRows};

/// Opens a Parquet file, or one of Arrow.
///
/// # Errors
/// It cannot be read, or is no such table.
pub(in crate::records) fn open(path: &Path, is_parquet: bool) -> Result<WholeRows, DataError> {
    let table = TableFile::open(path)?;
    if table.size == 0 {
        return Err(DataError::empty(path));
    }
    let all = |schema: &Schema| Ok((0..schema.fields().len()).collect());
    let (format, batches) = match is_parquet {
        true => ("Parquet", parquet_batches(&table, all)?.0),
        false => ("Arrow", arrow_batches(&table, all)?),
    };
    Ok(Box::new(TableRows { table, format, batches, rows: VecDeque::new(), row: 0, has_ended: false }))
}

struct TableRows {
    table: TableFile,
    format: &'static str,
    batches: Batches,
    /// Rest of the last decoded batch.
    rows: VecDeque<Result<Row, String>>,
    row: u64,
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
        Some(Ok(WholeRow { unit: "row", number: self.row, row }))
    }
}
