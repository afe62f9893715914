//! In place of tables, where the worker is built without the feature `parquet`.

use super::Records;
use crate::data::cache::Cache;
use crate::data::origin::Origin;
use crate::data::{DataError, Recipe, built};

/// Refuses.
pub(super) fn open(_: &Origin, _: &Recipe, _: &Cache) -> Result<Box<dyn Records>, DataError> {
    Err(built::PARQUET.missing())
}
