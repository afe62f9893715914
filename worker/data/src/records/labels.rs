//! The class and the second text in rows of CSV and TSV.

use std::sync::Arc;

use csv::ByteRecord;
use longhaul_common::config::Column;

use super::faults;
use crate::counted::counted;
use crate::labelled::{LabelledText, Labelling};
use crate::{DataError, Recipe};

/// Columns beside that of the text.
pub(super) struct Beside {
    labelling: Arc<Labelling>,
    pair: Option<usize>,
    label: usize,
}

impl Beside {
    /// Finds the columns of labelled texts; `None`: the source has other texts.
    ///
    /// # Errors
    /// Those of `find`: there is no such column.
    pub(super) fn of(
        recipe: &Recipe,
        find: impl Fn(&Column) -> Result<usize, DataError>,
    ) -> Result<Option<Self>, DataError> {
        let Some(labelling) = &recipe.labelling else { return Ok(None) };
        let pair = labelling.text_pair.as_ref().map(&find).transpose()?;
        let label = find(&labelling.label)?;
        Ok(Some(Self { labelling: Arc::clone(labelling), pair, label }))
    }

    /// Returns their indices.
    pub(super) fn columns(&self) -> impl Iterator<Item = usize> + use<> {
        self.pair.into_iter().chain([self.label])
    }

    /// Returns the labelled text of a row, whose values are UTF-8.
    ///
    /// # Errors
    /// The reason why it is none.
    pub(super) fn labelled(&self, text: String, row: &ByteRecord) -> Result<LabelledText, String> {
        let cell = |column: usize| {
            let cell = row.get(column).map(String::from_utf8_lossy);
            cell.ok_or_else(|| {
                let columns = counted(row.len() as u64, "column");
                format!("it has {columns}, and column {} was asked for", column + 1)
            })
        };
        let pair = self.pair.map(&cell).transpose()?.map(|pair| faults::checked::<String>(pair.into_owned()));
        let pair = pair.transpose()?;
        let class = self.labelling.class_of_text(&cell(self.label)?)?;
        Ok(LabelledText { text, pair, class })
    }
}
