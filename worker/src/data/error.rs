//! What can be wrong with the data, said so that it can be mended.

use std::io;
use std::path::{Path, PathBuf};

/// Data that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read or written.
    #[error("{operation} {}: {source}{}", path.display(), remedy(operation, source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A text that is not UTF-8.
    #[error(
        "{} is not UTF-8 at byte {offset} of its text; convert it, for example with \
         `iconv -f latin1 -t utf-8`", path.display()
    )]
    NotUtf8 {
        /// Which file.
        path: PathBuf,
        /// Where in the text, after decompression.
        offset: u64,
    },
    /// A text with too few tokens.
    #[error(
        "{} has {tokens} tokens, of which {training} are for training; at least {needed} are needed for one \
         sequence: give it more text, or lower data.sequence_length or data.validation_share", path.display()
    )]
    TooShort {
        /// Which file.
        path: PathBuf,
        /// Tokens in it.
        tokens: u64,
        /// Tokens left after the validation share.
        training: u64,
        /// Tokens in one sequence and its last target.
        needed: u64,
    },
    /// A tokenizer file that the `tokenizers` library refuses.
    #[error("{} is no tokenizer: {reason}; it should be a `tokenizer.json` as Hugging Face writes it", path.display())]
    Tokenizer {
        /// Which file.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
}

impl DataError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }
}

/// What [`DataError::Io`] calls the reading of a tokenizer, which no flag of the worker replaces.
pub(super) const READ_TOKENIZER: &str = "read tokenizer";

fn remedy(operation: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if operation == READ_TOKENIZER => {
            "; the run's data.tokenizer names it, and relative paths count from the folder that the worker was started in"
        }
        io::ErrorKind::NotFound => {
            "; relative paths count from the folder that the worker was started in, and `--data` names another file"
        }
        io::ErrorKind::PermissionDenied => "; the user that runs the worker needs access to it",
        io::ErrorKind::StorageFull => "; free some space, or name another folder with `--cache-dir`",
        _ => "",
    }
}
