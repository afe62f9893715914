//! Labels in a file of their own, one per line, as PIQA and WinoGrande are published: `train.jsonl` and `train-labels.lst`.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::TaskError;
use crate::DataError;

/// Most bytes of such a file: millions of labels.
const LABELS_BYTES_MAX: u64 = 16 << 20;

/// The labels of a file.
pub(super) struct Labels {
    path: PathBuf,
    all: Vec<String>,
}

impl Labels {
    /// Reads the file beside the questions; `None`: there is none.
    pub(super) fn beside(questions: &Path) -> Result<Option<Self>, TaskError> {
        let Some(name) = questions.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
        let stem = name.split('.').next().unwrap_or(name);
        let path = questions.with_file_name(format!("{stem}-labels.lst"));
        if !path.is_file() {
            return Ok(None);
        }
        let mut text = String::new();
        let file = std::fs::File::open(&path).map_err(DataError::io("open", &path))?;
        file.take(LABELS_BYTES_MAX + 1).read_to_string(&mut text).map_err(DataError::io("read", &path))?;
        if text.len() as u64 > LABELS_BYTES_MAX {
            let (most, remedy) =
                (format!("{LABELS_BYTES_MAX} bytes"), "labels are short lines: fetch it again");
            return Err(TaskError::TooMuch { path, most, remedy });
        }
        let all = text.trim_end().lines().map(|line| line.trim().to_owned()).collect();
        Ok(Some(Self { path, all }))
    }

    /// Returns the label of the row with this index.
    pub(super) fn get(&self, row: usize) -> Option<&str> {
        self.all.get(row).map(String::as_str)
    }

    /// Checks the number of rows.
    pub(super) fn check(&self, rows: usize, are_all: bool) -> Result<(), TaskError> {
        let labels = self.all.len();
        if labels == rows || !are_all && labels > rows {
            return Ok(());
        }
        let reason =
            format!("it has {labels} labels, and the questions beside it are {rows}: fetch both again");
        Err(TaskError::Labels { path: self.path.clone(), reason })
    }
}
