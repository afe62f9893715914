//! Columns without text, and conversions of them.

use arrow_schema::{DataType, Field, Schema};
use longhaul_common::config::Column;

use crate::records::known::{MESSAGES, example, listed, meant, shown};

pub(super) fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

fn is_binary(kind: &DataType) -> bool {
    match kind {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => is_binary(values),
        _ => false,
    }
}

/// Lists the columns with their types.
pub(super) fn known(schema: &Schema) -> String {
    let known = schema.fields().iter().map(|field| {
        let kind = field.data_type();
        let kind = if is_text(kind) { "text".to_owned() } else { shown(&kind.to_string()) };
        format!("{} ({kind})", shown(field.name()))
    });
    listed(known)
}

/// Returns the remedy for a missing column.
pub(super) fn elsewhere(schema: &Schema, wanted: &Column) -> String {
    let texts = texts(schema);
    if let Column::Number(_) = wanted
        && !texts.is_empty()
    {
        return format!(
            "say a number from 1 to {}, or the name of a column with text",
            schema.fields().len()
        );
    }
    let wanted = name_of(wanted);
    let made = || schema.fields().iter().enumerate().filter_map(|(place, field)| made_of(place, field));
    let talk = || made().find(|made| made.sort == Sort::Talk).map(Made::told);
    let known = meant(wanted, &texts).map(say).or_else(talk);
    let known = known.or_else(|| example(wanted, &texts).map(say));
    known.or_else(|| made().next().map(Made::told_if_meant)).unwrap_or_else(|| OF_ITS_OWN.to_owned())
}

/// Returns the remedy for a column that holds no text.
pub(super) fn instead(schema: &Schema, wanted: &Column, place: usize) -> String {
    let (field, another) = (schema.field(place), || example(name_of(wanted), &texts(schema)).map(say));
    let made = || made_of(place, field).map(Made::told);
    let remedy = made().or_else(another).unwrap_or_else(|| OF_ITS_OWN.to_owned());
    match field.data_type() {
        DataType::Null => format!("all its values are null, as where no text was found; {remedy}"),
        _ => remedy,
    }
}

const OF_ITS_OWN: &str = "write the text into a column of its own";

fn texts(schema: &Schema) -> Vec<&str> {
    let texts = schema.fields().iter().filter(|field| is_text(field.data_type()));
    texts.map(|field| field.name().as_str()).collect()
}

fn name_of(column: &Column) -> &str {
    if let Column::Name(name) = column { name } else { "" }
}

fn say(name: String) -> String {
    format!("say column = {name} if that is the text")
}

/// A conversion of a column to texts.
struct Made {
    sort: Sort,
    does: String,
}

/// The content of such a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Talk,
    List,
    Field,
    Bytes,
}

impl Made {
    /// Describes the conversion of the configured or the only possible column.
    fn told(self) -> String {
        match self.sort {
            Sort::Talk | Sort::List | Sort::Field => self.does,
            Sort::Bytes => format!("if its bytes are UTF-8, {}", self.does),
        }
    }

    /// Describes the conversion of another column.
    fn told_if_meant(self) -> String {
        match self.sort {
            Sort::Talk | Sort::List | Sort::Field => format!("if that is the text: {}", self.does),
            Sort::Bytes => format!("if that is the text, and its bytes are UTF-8: {}", self.does),
        }
    }
}

/// Returns the pyarrow conversion for a column of bytes, of objects with a text, or of lists of texts or messages. Each value may be null.
fn made_of(place: usize, field: &Field) -> Option<Made> {
    let (name, kind) = (field.name(), field.data_type());
    if shown(name) != *name {
        return None;
    }
    if is_binary(kind) {
        let does = format!(
            "`table.set_column({place}, {name:?}, table[{name:?}].cast(\"string\"))` of pyarrow makes text of them: write that table"
        );
        return Some(Made { sort: Sort::Bytes, does });
    }
    if let DataType::Struct(fields) = kind {
        let texts: Vec<&str> = fields
            .iter()
            .filter(|field| is_text(field.data_type()))
            .map(|field| field.name().as_str())
            .collect();
        let text = example(name, &texts)?;
        let does = format!(
            "`pyarrow.table({{\"text\": [row[{text}] for row in table[{name:?}].to_pylist() if row and row[{text}]]}})` takes the field {text} out of it: write that table"
        );
        return Some(Made { sort: Sort::Field, does });
    }
    let (sort, row) = match items_of(kind)? {
        items if is_text(items) => (Sort::List, "t or '' for t in row or []".to_owned()),
        DataType::Struct(fields) => {
            let has =
                |name: &str| fields.iter().any(|field| field.name() == name && is_text(field.data_type()));
            let (who, what) = MESSAGES.iter().find(|(who, what)| has(who) && has(what))?;
            let of_one = format!("f\"{{m['{who}'] or ''}}: {{m['{what}'] or ''}}\"");
            (Sort::Talk, format!("{of_one} for m in row or [] if m"))
        }
        _ => return None,
    };
    let or =
        if sort == Sort::Talk { "; to train on them as conversations, add [data.conversations]" } else { "" };
    let does = format!(
        "`pyarrow.table({{\"text\": [\"\\n\".join({row}) for row in table[{name:?}].to_pylist()]}})` makes a text of each of its lists: write that table{or}"
    );
    Some(Made { sort, does })
}

fn items_of(kind: &DataType) -> Option<&DataType> {
    match kind {
        DataType::List(items)
        | DataType::LargeList(items)
        | DataType::ListView(items)
        | DataType::LargeListView(items)
        | DataType::FixedSizeList(items, _) => Some(items.data_type()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn schema(columns: &[(&str, DataType)]) -> Schema {
        Schema::new(
            columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>(),
        )
    }

    fn list(items: DataType) -> DataType {
        DataType::List(Arc::new(Field::new("element", items, true)))
    }

    fn object(fields: &[(&str, DataType)]) -> DataType {
        let field = |(name, kind): &(&str, DataType)| Field::new(*name, kind.clone(), true);
        DataType::Struct(fields.iter().map(field).collect())
    }

    fn messages(who: &str, what: &str) -> DataType {
        let field = |name: &str| Field::new(name, DataType::Utf8, true);
        list(DataType::Struct(vec![field(what), field(who)].into()))
    }

    fn dictionary(values: DataType) -> DataType {
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(values))
    }

    #[test]
    fn columns_are_told_with_what_they_hold() {
        let all = schema(&[
            ("id", DataType::Int64),
            ("body", dictionary(DataType::LargeUtf8)),
            ("raw", DataType::Binary),
        ]);
        assert_eq!(known(&all), "id (Int64), body (text), raw (Binary)");
        assert_eq!(known(&schema(&[])), "none");
    }

    #[test]
    fn a_column_of_text_is_named_or_else_what_makes_one() {
        let text = Column::Name("text".to_owned());
        let cast = "if that is the text, and its bytes are UTF-8: `table.set_column(1, \"raw\", table[\"raw\"].cast(\"string\"))`";
        let talk = "`pyarrow.table({\"text\": [\"\\n\".join(f\"{m['role'] or ''}: {m['content'] or ''}\" for m in row or [] if m) for row in table[\"chat\"].to_pylist()]})`";
        let join = "if that is the text: `pyarrow.table({\"text\": [\"\\n\".join(t or '' for t in row or []) for row in table[\"parts\"].to_pylist()]})`";
        let id = ("id", DataType::Int64);
        for (columns, words) in [
            (
                vec![id.clone(), ("title", DataType::Utf8), ("content", DataType::Utf8View)],
                "say column = \"content\"",
            ),
            (vec![id.clone(), ("verse", DataType::Utf8)], "say column = \"verse\" if that is the text"),
            (vec![id.clone(), ("raw", DataType::LargeBinary)], cast),
            (vec![id.clone(), ("raw", dictionary(DataType::Binary))], cast),
            (vec![id.clone(), ("chat", messages("role", "content"))], talk),
            (vec![("source", DataType::Utf8), ("chat", messages("role", "content"))], talk),
            (
                vec![("chat", messages("from", "value"))],
                "`pyarrow.table({\"text\": [\"\\n\".join(f\"{m['from'] or ''}: {m['value'] or ''}\"",
            ),
            (vec![("parts", list(DataType::LargeUtf8))], join),
            (
                vec![("image", DataType::Binary), ("caption", DataType::Utf8)],
                "say column = \"caption\" if that is the text",
            ),
            (
                vec![("tags", list(DataType::Utf8)), ("question", DataType::Utf8)],
                "say column = \"question\" if that is the text",
            ),
            (vec![("tags", list(DataType::Utf8)), ("chat", messages("role", "content"))], talk),
            (
                vec![id.clone(), ("page", object(&[("n", DataType::Int64), ("body", DataType::Utf8)]))],
                "if that is the text: `pyarrow.table({\"text\": [row[\"body\"] for row in table[\"page\"].to_pylist() if row and row[\"body\"]]})` takes the field \"body\" out of it",
            ),
            (vec![id.clone(), ("page", object(&[("n", DataType::Int64)]))], OF_ITS_OWN),
            (vec![id.clone(), ("parts", list(DataType::Int64))], OF_ITS_OWN),
            (vec![], OF_ITS_OWN),
        ] {
            let told = elsewhere(&schema(&columns), &text);
            assert!(told.starts_with(words), "{columns:?}: {told}");
        }
    }

    #[test]
    fn what_is_asked_for_counts_more_than_another_column() {
        let all = schema(&[
            ("n", DataType::Int64),
            ("text", messages("role", "content")),
            ("title", DataType::Utf8),
        ]);
        let wanted = |place: u32| Column::Number(place);
        assert!(instead(&all, &wanted(2), 1).starts_with("`pyarrow.table("));
        let bytes = schema(&[("title", DataType::Utf8), ("text", DataType::Binary)]);
        let text = Column::Name("text".to_owned());
        assert!(instead(&bytes, &text, 1).starts_with("if its bytes are UTF-8, `table.set_column(1, "));
        assert_eq!(instead(&all, &wanted(1), 0), "say column = \"title\" if that is the text");
        assert_eq!(
            elsewhere(&all, &wanted(4)),
            "say a number from 1 to 3, or the name of a column with text"
        );
        let page = object(&[("url", DataType::Utf8), ("text", DataType::LargeUtf8)]);
        let pages = schema(&[("title", DataType::Utf8), ("text", page)]);
        let told = instead(&pages, &text, 1);
        assert!(told.contains("[row[\"text\"] for row in table[\"text\"].to_pylist() if row and"), "{told}");
        let nulls = "all its values are null, as where no text was found; ";
        let empty = schema(&[("title", DataType::Utf8), ("text", DataType::Null)]);
        assert_eq!(instead(&empty, &text, 1), format!("{nulls}say column = \"title\" if that is the text"));
        let empty = schema(&[("text", DataType::Null)]);
        assert_eq!(instead(&empty, &text, 0), format!("{nulls}{OF_ITS_OWN}"));
        let none = schema(&[("n", DataType::Int64)]);
        assert_eq!(instead(&none, &wanted(1), 0), OF_ITS_OWN);
        assert_eq!(elsewhere(&none, &wanted(2)), OF_ITS_OWN);
    }
}
