//! Errors of tasks and held-out texts, each with a remedy.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::TaskKind;
use crate::DataError;
use crate::counted::{are, counted, were};

/// Wrong rows named in a message.
pub(super) const EXAMPLES_MAX: usize = 3;

/// A file that cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// It cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Its name says no format.
    #[error("{} has no known ending: rows are in JSON lines (.jsonl, .json), Parquet (.parquet), Arrow (.arrow) or CSV (.csv, .tsv)", path.display())]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// It does not exist.
    #[error("{}: there is no such file", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It is a folder.
    #[error("{} is a folder: name its files, of one split (for example {}/test*.parquet)", path.display(), path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// Its columns are not those expected.
    #[error("{}: its columns are {found}: {remedy}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The names of its columns.
        found: String,
        /// The expected ones.
        remedy: String,
    },
    /// Rows that are not of the task's form.
    #[error("{}: {} of {all} {} not of the form of {kind}, and leaving them out would change the result: mend them. {}", path.display(), counted(*wrong, "row"), are(*wrong), examples.join("; "))]
    Rows {
        /// The file.
        path: PathBuf,
        /// Name of the form.
        kind: String,
        /// Number of such rows.
        wrong: u64,
        /// Rows read.
        all: u64,
        /// The first ones, each with its place and cause.
        examples: Vec<String>,
    },
    /// It has no rows.
    #[error("{} has no rows", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It has more than fits.
    #[error("{} has more than {most}: {remedy}", path.display())]
    TooMuch {
        /// The file.
        path: PathBuf,
        /// The limit, with its unit.
        most: String,
        /// What helps.
        remedy: &'static str,
    },
    /// A file of labels that does not fit.
    #[error("{}: {reason}", path.display())]
    Labels {
        /// The file.
        path: PathBuf,
        /// The cause, and the remedy.
        reason: String,
    },
    /// Columns that no file of labelled texts has.
    #[error("{0}")]
    Labelled(String),
    /// A question or text that cannot be tokenised or scored.
    #[error("{place}: {reason}")]
    Question {
        /// Its file and row.
        place: String,
        /// The cause.
        reason: String,
    },
    /// Too few examples.
    #[error("{}: {} {} asked for, and --few-shot-from has {found} of the kind {kind}{}, besides the question itself", path.display(), counted(*wanted as u64, "example"), were(*wanted as u64), of_subject(subject))]
    Examples {
        /// The file of the questions.
        path: PathBuf,
        /// Their kind.
        kind: TaskKind,
        /// The description of their subject, if they have one.
        subject: String,
        /// Such examples.
        found: usize,
        /// Number asked for.
        wanted: usize,
    },
}

fn of_subject(subject: &str) -> String {
    if subject.is_empty() { String::new() } else { format!(" with the subject in {subject:?}") }
}

/// Refuses a path that is no file.
pub(super) fn check_file(path: &Path) -> Result<(), TaskError> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(TaskError::Folder { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(TaskError::Missing { path: path.to_owned() })
        }
        _ => Ok(()),
    }
}
