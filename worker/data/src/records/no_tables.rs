//! Stand-in for tables in builds without the feature `parquet`.

use super::Records;
use crate::cache::Cache;
use crate::origin::Origin;
use crate::{DataError, Recipe, built};

/// Refuses.
pub(super) fn open(_: &Origin, _: &Recipe, _: &Cache) -> Result<Box<dyn Records>, DataError> {
    Err(built::PARQUET.missing())
}
