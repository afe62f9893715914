//! Records of rows with several columns: conversations, or labelled texts.

use std::path::Path;

use minijinja::Value;

use super::{Record, faults};
use crate::chat;
use crate::labelled::LabelledReader;
use crate::notes::Notes;
use crate::{DataError, Recipe};

/// Reads the rows of a file.
#[derive(Debug)]
pub(super) enum RecordReader {
    Conversations(chat::RowReader),
    Labelled(LabelledReader),
}

impl RecordReader {
    /// Returns that of a file; `None`: its records are texts of one column.
    pub(super) fn of(recipe: &Recipe, path: &Path) -> Option<Self> {
        match (&recipe.chat, &recipe.labelling) {
            (Some(chat), _) => Some(Self::Conversations(chat::RowReader::new(chat, path))),
            (None, Some(labelling)) => Some(Self::Labelled(LabelledReader::new(labelling))),
            (None, None) => None,
        }
    }

    /// Returns the indices of the columns of a table that are to be read.
    ///
    /// # Errors
    /// One is missing, or there twice; or they are of no form of conversations.
    #[cfg(feature = "parquet")]
    pub(super) fn columns(&mut self, path: &Path, names: &[&str]) -> Result<Vec<usize>, DataError> {
        match self {
            Self::Conversations(reader) => reader.columns(names),
            Self::Labelled(reader) => reader.columns(path, names),
        }
    }

    /// Refuses a table that names its classes otherwise than the run. `names` returns the names that it gives to a column's numbers.
    ///
    /// # Errors
    /// Names both.
    #[cfg(feature = "parquet")]
    pub(super) fn check_classes(
        &self,
        path: &Path,
        names: impl Fn(&str) -> Option<Vec<String>>,
    ) -> Result<(), DataError> {
        match self {
            Self::Conversations(_) => Ok(()),
            Self::Labelled(reader) => reader.check_classes(path, names),
        }
    }

    /// Reads a row, an object, at a place.
    ///
    /// # Errors
    /// The columns of the first conversation are of no form.
    pub(super) fn read(&mut self, row: &Value, place: String) -> Result<Record, DataError> {
        let record = match self {
            Self::Conversations(reader) => reader
                .read(row)?
                .map(|conversation| Record::Conversation { conversation, place: place.clone() }),
            Self::Labelled(reader) => reader.read(row).and_then(|mut text| {
                text.text = faults::checked::<String>(text.text)?;
                text.pair = text.pair.map(faults::checked::<String>).transpose()?;
                Ok(Record::Labelled { text, place: place.clone() })
            }),
        };
        Ok(record.unwrap_or_else(|reason| Record::bad(format!("{place}: {reason}"))))
    }

    /// Takes the notes on the rows since the last call.
    pub(super) fn take_notes(&mut self) -> Notes {
        match self {
            Self::Conversations(reader) => reader.take_notes(),
            Self::Labelled(reader) => reader.take_notes(),
        }
    }
}
