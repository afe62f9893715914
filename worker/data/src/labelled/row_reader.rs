//! Labelled texts of rows.

#[cfg(feature = "parquet")]
use std::path::Path;

use longhaul_common::config::Column;
use minijinja::Value;
use minijinja::value::ValueKind;

use super::label::called;
use super::{LabelledText, Labelling};
#[cfg(feature = "parquet")]
use crate::DataError;
use crate::chat::{field, is_filled, kind_of, written};
use crate::notes::{Note, Notes, UnreadColumns};

/// Most columns in a message.
const SHOWN_MAX: usize = 20;

/// Reads labelled texts.
#[derive(Debug)]
pub(crate) struct LabelledReader {
    labelling: Labelling,
    /// Columns of a table that are not read.
    unread: UnreadColumns,
    notes: Notes,
}

impl LabelledReader {
    pub(crate) fn new(labelling: &Labelling) -> Self {
        Self { labelling: labelling.clone(), unread: UnreadColumns::default(), notes: Notes::default() }
    }

    /// Learns the columns of a file's table, and returns the indices of those to be read.
    ///
    /// # Errors
    /// One is missing, or there twice.
    #[cfg(feature = "parquet")]
    pub(crate) fn columns(&mut self, path: &Path, columns: &[&str]) -> Result<Vec<usize>, DataError> {
        let place = |wanted: &Column| {
            let mut places = (0..columns.len()).filter(|at| Some(columns[*at]) == wanted.name());
            let (first, second) = (places.next(), places.next());
            first.filter(|_| second.is_none()).ok_or_else(|| DataError::NoColumn {
                path: path.to_owned(),
                column: format!("{wanted}, or two of them"),
                known: listed(columns),
                remedy: "data.classification names the columns of text, text_pair and label".to_owned(),
            })
        };
        let read: Vec<usize> = self.labelling.columns().map(place).collect::<Result<_, _>>()?;
        let unread = (0..columns.len()).filter(|at| !read.contains(at));
        self.unread = UnreadColumns::of(unread.map(|at| columns[at].to_owned()).collect());
        Ok(read)
    }

    /// Refuses a table that names its classes otherwise than the run. `names` returns the names that it gives to a column's numbers.
    ///
    /// # Errors
    /// Names both.
    #[cfg(feature = "parquet")]
    pub(crate) fn check_classes(
        &self,
        path: &Path,
        names: impl Fn(&str) -> Option<Vec<String>>,
    ) -> Result<(), DataError> {
        let Labelling { label, labels, .. } = &self.labelling;
        match label.name().and_then(names) {
            Some(names) if names != *labels => Err(DataError::OtherContent {
                path: path.to_owned(),
                what: format!(
                    "a table whose column {label} numbers the classes {names:?}, and data.classification.labels are {labels:?}: say labels = {names:?}, or write the names in place of the numbers"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Reads a row, an object.
    ///
    /// # Errors
    /// The reason why it is no labelled text.
    pub(crate) fn read(&mut self, row: &Value) -> Result<LabelledText, String> {
        let text = |column: &Column| {
            let value = field_of(row, column);
            let missing =
                || format!("its {column} is {}, and no text{}", kind_of(&value), self.others(row, &value));
            value.as_str().map(str::to_owned).ok_or_else(missing)
        };
        let Labelling { text: first, text_pair, label, .. } = &self.labelling;
        let (text, pair) = (text(first)?, text_pair.as_ref().map(text).transpose()?);
        let class = self.class_of(row, &field_of(row, label))?;
        self.note_unread(row);
        Ok(LabelledText { text, pair, class })
    }

    /// Adds the columns of a good row that are not read to the notes.
    fn note_unread(&mut self, row: &Value) {
        let keys: Vec<Value> = row.try_iter().map(Iterator::collect).unwrap_or_default();
        let is_unread = |name: &&str| {
            !self.labelling.columns().any(|column| column.name() == Some(name))
                && is_filled(&field(row, name))
        };
        let unread = keys.iter().filter_map(Value::as_str).filter(is_unread);
        unread.for_each(|name| self.notes.name(Note::UnreadColumns, name));
        self.unread.see_row();
    }

    /// Takes the notes on the rows since the last call.
    pub(crate) fn take_notes(&mut self) -> Notes {
        self.unread.note(&mut self.notes);
        std::mem::take(&mut self.notes)
    }

    fn class_of(&self, row: &Value, label: &Value) -> Result<u32, String> {
        if let Some(label) = label.as_str() {
            return self.labelling.class_of_text(label);
        }
        let number = (label.kind() == ValueKind::Number).then(|| i64::try_from(label.clone()).ok()).flatten();
        match number {
            Some(number) => self.labelling.class_of_number(number),
            None => Err(format!(
                "its {} is {}{}, and no class: its name, or its whole number from 0, is wanted",
                called(&self.labelling.label),
                written(label).unwrap_or_else(|| kind_of(label).to_owned()),
                self.others(row, label)
            )),
        }
    }

    /// Names the columns of a row that lacks one.
    fn others(&self, row: &Value, value: &Value) -> String {
        if !value.is_undefined() {
            return String::new();
        }
        let keys: Vec<Value> = row.try_iter().map(Iterator::collect).unwrap_or_default();
        let names: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        format!(" (its columns are {})", listed(&names))
    }
}

fn field_of(row: &Value, column: &Column) -> Value {
    column.name().map_or(Value::UNDEFINED, |name| field(row, name))
}

fn listed(columns: &[&str]) -> String {
    let shown: Vec<String> = columns.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = columns.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if shown.is_empty() { "none".to_owned() } else { format!("{}{more}", shown.join(", ")) }
}
