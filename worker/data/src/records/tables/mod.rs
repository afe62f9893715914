//! Parquet and Arrow tables: their readers seek, and decode columns.

mod arrow_sizes;
mod class_names;
mod columns;
mod ends;
mod json_values;
mod no_text;
mod raw_texts;
mod table_file;
mod table_records;
mod whole_rows;

use std::io::Read;
use std::path::Path;

use longhaul_common::config::DataFormat;

use self::columns::Columns;
use self::table_file::TableFile;
use self::table_records::TableRecords;
pub(super) use self::whole_rows::open as whole_rows;
use super::record_reader::RecordReader;
use super::{Records, content};
use crate::cache::Cache;
use crate::origin::Origin;
use crate::{DataError, Recipe};

/// Opens a file of a source of tables.
pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Box<dyn Records>, DataError> {
    open_table(table_of(file, cache)?, recipe)
}

/// Opens a local file.
pub(super) fn open_local(path: &Path, recipe: &Recipe) -> Result<Box<dyn Records>, DataError> {
    open_table(TableFile::open(path)?, recipe)
}

fn open_table(table: TableFile, recipe: &Recipe) -> Result<Box<dyn Records>, DataError> {
    if table.size == 0 {
        return Err(DataError::empty(&table.path));
    }
    check_beginning(&table, recipe)?;
    if let Some(reader) = RecordReader::of(recipe, &table.path) {
        return Ok(Box::new(TableRecords::open(table, recipe, reader)?));
    }
    let columns = match recipe.format {
        DataFormat::Parquet => Columns::parquet(table, recipe),
        _ => Columns::arrow(table, recipe),
    };
    Ok(Box::new(columns?))
}

/// Checks the first bytes of a table: those of a remote one are unchecked so far.
fn check_beginning(table: &TableFile, recipe: &Recipe) -> Result<(), DataError> {
    let mut head = Vec::new();
    let read = table.rewound()?.take(content::HEAD_BYTES as u64).read_to_end(&mut head);
    read.map_err(DataError::io("read", &table.path))?;
    let other = |what| DataError::OtherContent { path: table.path.clone(), what };
    content::check(&head, recipe.format, recipe.is_said).map_err(other)
}

fn table_of(file: &Origin, cache: &Cache) -> Result<TableFile, DataError> {
    match file {
        Origin::Local(path) => TableFile::open(path),
        Origin::Remote(remote) => TableFile::fetch(remote, cache),
        Origin::Labelled { images, .. } => table_of(images, cache),
    }
}
