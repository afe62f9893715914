//! Rows of a table with several columns: conversations, or labelled texts.

use std::collections::VecDeque;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};
use longhaul_common::config::DataFormat;
use minijinja::Value;

use super::class_names;
use super::columns::{Batches, arrow_batches, guarded, malformed, parquet_batches};
use super::table_file::TableFile;
use crate::chat::of_float;
use crate::notes::Notes;
use crate::records::known::shown;
use crate::records::record_reader::RecordReader;
use crate::records::{Record, Records};
use crate::{DataError, Recipe};

/// The rows of a table.
pub(super) struct TableRecords {
    table: TableFile,
    format: &'static str,
    batches: Batches,
    reader: RecordReader,
    /// Rest of the last decoded batch.
    rows: VecDeque<Result<Value, String>>,
    row: u64,
    /// Rows of the file, if declared.
    count: Option<u64>,
}

impl TableRecords {
    pub(super) fn open(
        table: TableFile,
        recipe: &Recipe,
        mut reader: RecordReader,
    ) -> Result<Self, DataError> {
        let choose = |schema: &Schema| {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let columns = reader.columns(&table.path, &names)?;
            reader.check_classes(&table.path, |column| class_names::of(schema, column))?;
            Ok(columns)
        };
        let (format, batches, count) = match recipe.format {
            DataFormat::Parquet => {
                let (batches, _, rows) = parquet_batches(&table, choose)?;
                ("Parquet", batches, rows)
            }
            _ => ("Arrow", arrow_batches(&table, choose)?, None),
        };
        Ok(Self { table, format, batches, reader, rows: VecDeque::new(), row: 0, count })
    }
}

impl Records for TableRecords {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        while self.rows.is_empty() {
            let next = guarded(|| self.batches.next().transpose());
            let next = next.map_err(|error| malformed(&self.table.path, self.format, self.row, &error))?;
            let Some(batch) = next else { return Ok(None) };
            self.rows = (0..batch.num_rows()).map(|row| row_of(&batch, row)).collect();
        }
        let Some(row) = self.rows.pop_front() else { return Ok(None) };
        self.row += 1;
        let place = format!("{}, row {}", self.table.path.display(), self.row);
        let record = match row {
            Ok(row) => self.reader.read(&row, place)?,
            Err(reason) => Record::bad(format!("{place}: {reason}")),
        };
        Ok(Some(record))
    }

    fn read_bytes(&self) -> u64 {
        // Readers seek in such a file: the progress follows its rows.
        let share = self.count.filter(|rows| *rows > 0).map_or(0.0, |rows| self.row as f64 / rows as f64);
        (self.table.size as f64 * share.min(1.0)) as u64
    }

    fn take_notes(&mut self) -> Notes {
        self.reader.take_notes()
    }
}

/// Returns a row of a batch: a map from its columns' names.
pub(super) fn row_of(batch: &RecordBatch, row: usize) -> Result<Value, String> {
    let schema = batch.schema();
    let pair = |(field, column): (&std::sync::Arc<arrow_schema::Field>, &arrow_array::ArrayRef)| {
        let name = field.name();
        let read = value(column, row).map_err(|reason| format!("in its `{}`, {reason}", shown(name)))?;
        Ok((name.clone(), read))
    };
    let pairs = schema.fields().iter().zip(batch.columns()).map(pair);
    Ok(Value::from_pairs(pairs.collect::<Result<Vec<(String, Value)>, String>>()?))
}

/// Returns the value at a place of an array.
fn value(array: &dyn Array, at: usize) -> Result<Value, String> {
    if array.is_null(at) {
        return Ok(Value::from(()));
    }
    Ok(match array.data_type() {
        DataType::Null => Value::from(()),
        DataType::Boolean => array.as_boolean().value(at).into(),
        DataType::Utf8 => array.as_string::<i32>().value(at).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(at).into(),
        DataType::Utf8View => array.as_string_view().value(at).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(at).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(at).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(at).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(at).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(at).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(at).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(at).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(at).into(),
        DataType::Float32 => of_float(array.as_primitive::<Float32Type>().value(at).into()),
        DataType::Float64 => of_float(array.as_primitive::<Float64Type>().value(at)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary.normalized_keys().get(at).copied().unwrap_or_default();
            return value(dictionary.values(), key);
        }
        DataType::List(_) => list(&array.as_list::<i32>().value(at))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(at))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(at))?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let pair = |(field, column): (&std::sync::Arc<arrow_schema::Field>, &arrow_array::ArrayRef)| {
                Ok((field.name().clone(), value(column, at)?))
            };
            let pairs = fields.iter().zip(columns).map(pair).collect::<Result<Vec<_>, String>>()?;
            // Fields that other rows have are null here. As TRL, we take them for absent.
            Value::from_pairs(pairs.into_iter().filter(|(_, value)| !value.is_none()))
        }
        kind => {
            return Err(format!(
                "there is a value of the type {}, which is not read",
                shown(&kind.to_string())
            ));
        }
    })
}

fn list(items: &dyn Array) -> Result<Value, String> {
    let values = (0..items.len()).map(|at| value(items, at));
    Ok(values.collect::<Result<Vec<Value>, String>>()?.into())
}
