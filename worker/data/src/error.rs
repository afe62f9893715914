//! What can be wrong with the data, said so that it can be mended.

use std::io;
use std::path::{Path, PathBuf};

use indicatif::BinaryBytes;

use super::RemoteError;
use super::passed::PassedOver;
use crate::counted::{are, counted};

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
    /// A file elsewhere cannot be had.
    #[error("{url}: {source}")]
    Remote {
        /// Where it is, without what only opens it.
        url: String,
        /// What is wrong.
        source: RemoteError,
    },
    /// A file that begins as something else than what it is read as.
    #[error("{} is {what}", path.display())]
    OtherContent {
        /// Which file.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// A text that is not UTF-8.
    #[error("{} is not UTF-8 at byte {offset} of its text (0x{byte:02x}): {remedy}", path.display())]
    NotUtf8 {
        /// Which file.
        path: PathBuf,
        /// Where in the text, after decompression.
        offset: u64,
        /// What is there.
        byte: u8,
        /// What helps.
        remedy: String,
    },
    /// Too few tokens.
    #[error(
        "{source_name} has {}, of which {training} {} for training; at least {needed} are needed for one \
         sequence: give it more text, or lower data.sequence_length or data.validation_share",
        counted(*tokens, "token"), are(*training)
    )]
    TooShort {
        /// Which source, or all of them.
        source_name: String,
        /// Tokens in it.
        tokens: u64,
        /// Tokens left after the validation share.
        training: u64,
        /// Tokens in one sequence and its last target.
        needed: u64,
    },
    /// Too few images.
    #[error(
        "{source_name} has {}, of which {training} {} for training; there must be one at least: give it more, or lower data.validation_share",
        counted(*images, "image"), are(*training)
    )]
    TooFewImages {
        /// Which source, or all of them.
        source_name: String,
        /// Images in it.
        images: u64,
        /// Images left after the validation share.
        training: u64,
    },
    /// Nothing to train on, though there are files.
    #[error("{source_name} has nothing to train on: {found}")]
    Nothing {
        /// Which source, or all of them.
        source_name: String,
        /// What was read of it.
        found: String,
    },
    /// A class that there is not.
    #[error("{place} is of class {class}, and data.image.classes = {classes}: classes are numbered from 0 on, so the last one is {}; raise data.image.classes, or mend the image's class", classes - 1)]
    NoClass {
        /// Which image.
        place: String,
        /// Its class.
        class: u32,
        /// Classes that there are.
        classes: u32,
    },
    /// A folder that is not laid out as one of images.
    #[error("{}: {reason}", path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tokenizer file that the `tokenizers` library refuses.
    #[error("{} is no tokenizer: {reason}; it should be a `tokenizer.json` as Hugging Face writes it", path.display())]
    Tokenizer {
        /// Which file.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
    /// A tokenizer file that is not all of its tokenizer.
    #[error("{} is not the whole tokenizer: {reason}", path.display())]
    PartOfTokenizer {
        /// Which file.
        path: PathBuf,
        /// What other files beside it change, and what helps.
        reason: String,
    },
    /// What stands between records is not what it looks like.
    #[error("data.separator = {separator:?}: {reason}")]
    Separator {
        /// The separator.
        separator: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that this program lacks.
    #[error(
        "this worker was built without {what}: build it with `--features {feature}` (`cargo build --release` has all)"
    )]
    NotBuilt {
        /// What.
        what: &'static str,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// A pattern that matches no file, or is none.
    #[error(
        "data source {pattern}: {reason}; relative patterns count from the folder that `--data` names, or else from the one that the worker was started in"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that a source's place has and that would be missing.
    #[error(
        "data source {name}: of what is there, {lost}; mend it, or take what can be read alone with data.strict_files = false"
    )]
    PassedOver {
        /// The source.
        name: String,
        /// What would be missing.
        lost: PassedOver,
    },
    /// A column that a table does not have.
    #[error("{} has no column {column}; its columns are {known}: {remedy}", path.display())]
    NoColumn {
        /// Which file.
        path: PathBuf,
        /// The column that was asked for.
        column: String,
        /// Those that there are.
        known: String,
        /// What helps.
        remedy: String,
    },
    /// A column that holds something else than text.
    #[error("column {column} of {} holds {kind} and not text: {remedy}", path.display())]
    NotText {
        /// Which file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The type that the file gives.
        kind: String,
        /// What helps.
        remedy: String,
    },
    /// A file that is not what its format says, from some place on.
    #[error("{} cannot be read as {format} ({place}): {reason}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What it was read as.
        format: &'static str,
        /// Where in it.
        place: String,
        /// What its reader says.
        reason: String,
    },
    /// More records that cannot be read than may be left out.
    #[error(
        "{} of a source cannot be read, as far as it was read, and data.bad_records_max = {max}; mend them, or raise it and they are left out: {}",
        counted(*count, "record"), examples.join("; ")
    )]
    BadRecords {
        /// How many, as far as was read.
        count: u64,
        /// How many may be left out.
        max: u64,
        /// The first of them, with their places and what is wrong with them.
        examples: Vec<String>,
    },
    /// A file that became another while it was read, or after it was prepared.
    #[error("{} was changed while it was prepared, or after that: prepare it again when it is complete", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
    },
    /// Prepared data that is damaged again as soon as it was made again.
    #[error("{} does not read back as it was written, twice: is the disk failing? `--cache-dir` names a folder on another one", path.display())]
    Unreliable {
        /// Which file of the cache.
        path: PathBuf,
    },
    /// More prepared data than the cache may hold.
    #[error(
        "the cache may hold {}, of which {} are in use, and the next {} do not fit: the limit must be above all that this run and others on this machine \
         use at a time; raise `--cache-max-gib`, or give this run another folder with `--cache-dir`",
        BinaryBytes(*max), BinaryBytes(*in_use), BinaryBytes(*bytes)
    )]
    NoRoom {
        /// Bytes of what is to be written.
        bytes: u64,
        /// The limit.
        max: u64,
        /// Bytes of what is there and cannot be thrown away.
        in_use: u64,
    },
    /// What another worker says of the run's data cannot be used.
    #[error(
        "the catalogue of the run's data that another worker has sent is none of this run: {reason}; is the same release installed there?"
    )]
    Catalogue {
        /// What is wrong with it.
        reason: String,
    },
    /// Data of other workers could not be put into the cache.
    #[error("{block} came from another worker, and cannot be kept: {reason}")]
    NotKept {
        /// Which block.
        block: String,
        /// What the cache says.
        reason: String,
    },
    /// Somebody asked for a stop.
    #[error("stopped: what was prepared so far stays, and the same command goes on from there")]
    Stopped,
}

impl DataError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }

    /// A file without a byte, where its format begins with something.
    pub(super) fn empty(path: &Path) -> Self {
        let what = "empty (0 bytes): fetch it again, or take it out of the source".to_owned();
        Self::OtherContent { path: path.to_owned(), what }
    }

    /// Whether, of data that others have, they are to blame: it is none of this run.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        matches!(
            self,
            Self::Catalogue { .. }
                | Self::Tokenizer { .. }
                | Self::TooShort { .. }
                | Self::TooFewImages { .. }
        )
    }
}

/// What [`DataError::Io`] calls the reading of a tokenizer, which no flag of the worker replaces.
pub(super) const READ_TOKENIZER: &str = "read tokenizer";

fn remedy(operation: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if operation == READ_TOKENIZER => {
            "; the run's data.tokenizer names it, and relative paths count from the folder that the worker was started in; one of the Hugging Face Hub \
             is fetched first: `python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('NAME').save_pretrained('OUT')\"` writes OUT/tokenizer.json"
        }
        io::ErrorKind::NotFound => {
            "; relative paths count from the folder that the worker was started in, and `--data` names another file"
        }
        io::ErrorKind::PermissionDenied => "; the user that runs the worker needs access to it",
        io::ErrorKind::StorageFull => "; free some space, or name another folder with `--cache-dir`",
        _ => "",
    }
}
