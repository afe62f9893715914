//! Tables that Parquet and Arrow have: their readers jump about in a file, and decode columns.

mod arrow_sizes;
mod columns;
mod raw_texts;
mod table_file;

use longhaul_common::config::DataFormat;

use self::columns::Columns;
use self::table_file::TableFile;
use super::Records;
use crate::cache::Cache;
use crate::origin::Origin;
use crate::{DataError, Recipe};

/// Opens a file of a source of tables.
pub(super) fn open(file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<Box<dyn Records>, DataError> {
    let table = table_of(file, cache)?;
    if table.size == 0 {
        return Err(DataError::empty(&table.path));
    }
    let columns = match recipe.format {
        DataFormat::Parquet => Columns::parquet(table, recipe),
        _ => Columns::arrow(table, recipe),
    };
    Ok(Box::new(columns?))
}

fn table_of(file: &Origin, cache: &Cache) -> Result<TableFile, DataError> {
    match file {
        Origin::Local(path) => TableFile::open(path),
        Origin::Remote(remote) => TableFile::fetch(remote, cache),
        Origin::Labelled { images, .. } => table_of(images, cache),
    }
}
