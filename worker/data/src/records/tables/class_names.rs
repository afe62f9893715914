//! Names of classes in a table that `datasets` wrote: the feature `ClassLabel`, whose values are numbers.

use arrow_schema::{DataType, Schema};
use serde_json::Value;

/// Key of the description of the features in a schema's metadata.
const FEATURES: &str = "huggingface";

/// Returns the names of a column's classes, in order; `None`: the table names none, or the column holds the names themselves.
pub(super) fn of(schema: &Schema, column: &str) -> Option<Vec<String>> {
    let holds_numbers =
        schema.field_with_name(column).is_ok_and(|field| DataType::is_integer(field.data_type()));
    if !holds_numbers {
        return None;
    }
    let description: Value = serde_json::from_str(schema.metadata().get(FEATURES)?).ok()?;
    let feature = description.get("info")?.get("features")?.get(column)?;
    if feature.get("_type")?.as_str()? != "ClassLabel" {
        return None;
    }
    let names = feature.get("names")?.as_array()?;
    names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_schema::Field;

    use super::*;

    #[test]
    fn names_are_those_of_a_column_of_numbers_that_datasets_described() {
        let schema = |kind: DataType, features: &str| {
            let fields = vec![Field::new("label", kind, true), Field::new("other", DataType::Int64, true)];
            let described = (FEATURES.to_owned(), format!("{{\"info\": {{\"features\": {features}}}}}"));
            Schema::new(fields).with_metadata(HashMap::from([described]))
        };
        let features = r#"{"label": {"names": ["pos", "neg"], "_type": "ClassLabel"}, "other": {"dtype": "int64", "_type": "Value"}}"#;
        let names = Some(vec!["pos".to_owned(), "neg".to_owned()]);
        assert_eq!(of(&schema(DataType::Int64, features), "label"), names);
        assert_eq!(of(&schema(DataType::Int64, features), "other"), None);
        assert_eq!(of(&schema(DataType::Utf8, features), "label"), None);
        assert_eq!(of(&schema(DataType::Int64, "[]"), "label"), None);
        assert_eq!(of(&Schema::new(vec![Field::new("label", DataType::Int64, true)]), "label"), None);
    }
}
