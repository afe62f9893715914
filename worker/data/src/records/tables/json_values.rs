//! Columns of the type JSON (Arrow's extension `arrow.json`, Parquet's logical type): texts that stand for values, as `datasets` writes columns of unlike values.

use std::path::Path;

use arrow_schema::{DataType, Field, Schema};
use parquet::basic::{ConvertedType, LogicalType};
use parquet::schema::types::SchemaDescriptor;

use super::columns::DESCRIPTION;
use crate::DataError;

/// Key of a field's extension type, and the type.
const EXTENSION: (&str, &str) = ("ARROW:extension:name", "arrow.json");

/// Refuses one of these columns of an Arrow table.
///
/// # Errors
/// It holds such values.
pub(super) fn refuse(path: &Path, schema: &Schema, columns: &[usize]) -> Result<(), DataError> {
    let fields = columns.iter().filter_map(|column| schema.fields().get(*column));
    fields.filter_map(|field| within(field)).next().map_or(Ok(()), |name| Err(refused(path, &name)))
}

/// Refuses one of these columns of a Parquet file.
///
/// # Errors
/// It holds such values.
pub(super) fn refuse_in_parquet(
    path: &Path,
    schema: &SchemaDescriptor,
    columns: &[usize],
) -> Result<(), DataError> {
    for (at, leaf) in schema.columns().iter().enumerate() {
        let is_json = leaf.logical_type_ref() == Some(&LogicalType::Json)
            || leaf.converted_type() == ConvertedType::JSON;
        if is_json && columns.contains(&schema.get_column_root_idx(at)) {
            return Err(refused(path, &leaf.path().string()));
        }
    }
    Ok(())
}

/// Returns the name of such a field, or of one in it.
pub(super) fn within(field: &Field) -> Option<String> {
    let (key, kind) = EXTENSION;
    if field.metadata().get(key).is_some_and(|name| name == kind) {
        return Some(field.name().clone());
    }
    let inner = match field.data_type() {
        DataType::Struct(fields) => fields.iter().find_map(|field| within(field)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => within(item),
        _ => None,
    };
    inner.map(|name| format!("{}.{name}", field.name()))
}

fn refused(path: &Path, name: &str) -> DataError {
    let reason = format!(
        "`{name}` has the type JSON: its texts stand for values, which are not decoded here. Write lines with `datasets`, whose reader decodes them: `load_dataset(…).to_json(\"OUT.jsonl\")`"
    );
    DataError::Malformed { path: path.to_owned(), format: "a table", place: DESCRIPTION.to_owned(), reason }
}
