//! Stand-in for tables in builds without the feature `parquet`.

use std::path::Path;

use super::Records;
use super::whole_rows::WholeRows;
use crate::cache::Cache;
use crate::origin::Origin;
use crate::{DataError, Recipe, built};

/// Refuses.
pub(super) fn open(_: &Origin, _: &Recipe, _: &Cache) -> Result<Box<dyn Records>, DataError> {
    Err(built::PARQUET.missing())
}

/// Refuses.
pub(super) fn open_local(_: &Path, _: &Recipe) -> Result<Box<dyn Records>, DataError> {
    Err(built::PARQUET.missing())
}

/// Refuses.
pub(super) fn whole_rows(_: &Path, _: bool) -> Result<WholeRows, DataError> {
    Err(built::PARQUET.missing())
}
