//! Errors of the data, each with a remedy.

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
        /// The failed operation.
        operation: &'static str,
        /// Its file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A remote file cannot be fetched.
    #[error("{url}: {source}")]
    Remote {
        /// Its URL without secrets.
        url: String,
        /// The cause.
        source: RemoteError,
    },
    /// A file whose first bytes contradict its format.
    #[error("{} is {what}", path.display())]
    OtherContent {
        /// The file.
        path: PathBuf,
        /// Its actual content, and the remedy.
        what: String,
    },
    /// Text that is not UTF-8.
    #[error("{} is not UTF-8 at byte {offset} of its text (0x{byte:02x}): {remedy}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset in the text, after decompression.
        offset: u64,
        /// The byte at that offset.
        byte: u8,
        /// The remedy.
        remedy: String,
    },
    /// Too few tokens.
    #[error(
        "{source_name} has {}, of which {training} {} for training; at least {needed} are needed for one \
         sequence: give it more text, or lower data.sequence_length or data.validation_share",
        counted(*tokens, "token"), are(*training)
    )]
    TooShort {
        /// The source, or all of them.
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
        /// The source, or all of them.
        source_name: String,
        /// Images in it.
        images: u64,
        /// Images left after the validation share.
        training: u64,
    },
    /// Too few labelled texts.
    #[error(
        "{source_name} has {}, of which {training} {} for training; there must be one at least: give it more, or lower data.validation_share",
        counted(*texts, "labelled text"), are(*training)
    )]
    TooFewTexts {
        /// The source, or all of them.
        source_name: String,
        /// Texts in it.
        texts: u64,
        /// Those left for training.
        training: u64,
    },
    /// Too few conversations.
    #[error(
        "{source_name} has {} of conversations, of which {training} {} for training; there must be one at least: give it more, or lower data.validation_share",
        counted(*sequences, "sequence"), are(*training)
    )]
    TooFewConversations {
        /// The source, or all of them.
        source_name: String,
        /// Sequences in it.
        sequences: u64,
        /// Sequences left after the validation share.
        training: u64,
    },
    /// Files without anything to train on.
    #[error("{source_name} has nothing to train on: {found}")]
    Nothing {
        /// The source, or all of them.
        source_name: String,
        /// A summary of the content read.
        found: String,
    },
    /// A class out of range.
    #[error("{place} is of class {class}, and data.image.classes = {classes}: classes are numbered from 0 on, so the last one is {}; raise data.image.classes, or mend the image's class", classes - 1)]
    NoClass {
        /// The image.
        place: String,
        /// Its class.
        class: u32,
        /// Number of classes.
        classes: u32,
    },
    /// A folder that does not have the layout of an image folder.
    #[error("{}: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A tokenizer file that the `tokenizers` library refuses.
    #[error("{} is no tokenizer: {reason}; it should be a `tokenizer.json` as Hugging Face writes it", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's error.
        reason: String,
    },
    /// A tokenizer file that describes only part of its tokenizer.
    #[error("{} is not the whole tokenizer: {reason}", path.display())]
    PartOfTokenizer {
        /// The file.
        path: PathBuf,
        /// The changes made by other files beside it, and the remedy.
        reason: String,
    },
    /// A chat template that cannot be used.
    #[error("chat template, {place}: {reason}")]
    ChatTemplate {
        /// The file, or the key.
        place: String,
        /// The cause.
        reason: String,
    },
    /// A file whose records are no conversations.
    #[error("{}: {reason}", path.display())]
    Conversations {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// An invalid separator between records.
    #[error("data.separator = {separator:?}: {reason}")]
    Separator {
        /// The separator.
        separator: String,
        /// The cause.
        reason: String,
    },
    /// No mask token, for masked language modelling.
    #[error("{token}: {reason}")]
    MaskToken {
        /// The key.
        token: String,
        /// The cause, and the remedy.
        reason: String,
    },
    /// A feature missing from this build.
    #[error(
        "this worker was built without {what}: build it with `--features {feature}` (`cargo build --release` has all)"
    )]
    NotBuilt {
        /// The missing part.
        what: &'static str,
        /// The Cargo feature that adds it.
        feature: &'static str,
    },
    /// An invalid pattern, or one that matches no file.
    #[error(
        "data source {pattern}: {reason}; relative patterns count from the folder that `--data` names, or else from the one that the worker was started in"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The cause.
        reason: String,
    },
    /// Files of a source that would be left out.
    #[error(
        "data source {name}: {lost}; fix this, or read only the other files with data.strict_files = false"
    )]
    PassedOver {
        /// The source.
        name: String,
        /// The files left out.
        lost: PassedOver,
    },
    /// A column missing from a table.
    #[error("{} has no column {column}; its columns are {known}: {remedy}", path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The requested column.
        column: String,
        /// The table's columns.
        known: String,
        /// The remedy.
        remedy: String,
    },
    /// A column that does not hold text.
    #[error("column {column} of {} holds {kind} and not text: {remedy}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its type in the file.
        kind: String,
        /// The remedy.
        remedy: String,
    },
    /// A file that violates its format from some place on.
    #[error("{} cannot be read as {format} ({place}): {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The assumed format.
        format: &'static str,
        /// The place in the file.
        place: String,
        /// The reader's error.
        reason: String,
    },
    /// More unreadable records than `data.bad_records_max`.
    #[error(
        "{} of a source cannot be read, as far as it was read, and data.bad_records_max = {max}; mend them, or raise it and they are left out: {}",
        counted(*count, "record"), examples.join("; ")
    )]
    BadRecords {
        /// Unreadable records up to the point where reading stopped.
        count: u64,
        /// The limit.
        max: u64,
        /// The first of them, each with its place and cause.
        examples: Vec<String>,
    },
    /// A file that changed while it was read, or after it was prepared.
    #[error("{} was changed while it was prepared, or after that: prepare it again when it is complete", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Prepared data that is damaged again right after it was rebuilt.
    #[error("{} does not read back as it was written, twice: is the disk failing? `--cache-dir` names a folder on another one", path.display())]
    Unreliable {
        /// The file in the cache.
        path: PathBuf,
    },
    /// Prepared data beyond the limit of the cache.
    #[error(
        "the cache may hold {}, of which {} are in use, and the next {} do not fit: the limit must be above all that this run and others on this machine \
         use at a time; raise `--cache-max-gib`, or give this run another folder with `--cache-dir`",
        BinaryBytes(*max), BinaryBytes(*in_use), BinaryBytes(*bytes)
    )]
    NoRoom {
        /// Bytes to be written.
        bytes: u64,
        /// The limit.
        max: u64,
        /// Bytes in the cache that cannot be evicted.
        in_use: u64,
    },
    /// An unusable catalogue of the run's data from another worker.
    #[error(
        "the data catalogue sent by another worker is not this run's: {reason}; does that worker run the same release?"
    )]
    Catalogue {
        /// The cause.
        reason: String,
    },
    /// Data from other workers could not be written to the cache.
    #[error("{block} came from another worker, and cannot be kept: {reason}")]
    NotKept {
        /// The block.
        block: String,
        /// The cache's error.
        reason: String,
    },
    /// A stop was requested.
    #[error("stopped: what was prepared so far stays, and the same command goes on from there")]
    Stopped,
}

impl DataError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }

    /// Creates the error for an empty file of a format that has a header.
    pub(super) fn empty(path: &Path) -> Self {
        let what = "empty (0 bytes): fetch it again, or take it out of the source".to_owned();
        Self::OtherContent { path: path.to_owned(), what }
    }

    /// Whether the fault lies with data of other workers, which does not belong to this run.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        matches!(
            self,
            Self::Catalogue { .. }
                | Self::Tokenizer { .. }
                | Self::MaskToken { .. }
                | Self::TooShort { .. }
                | Self::TooFewImages { .. }
                | Self::TooFewConversations { .. }
                | Self::TooFewTexts { .. }
        )
    }
}

/// The operation that [`DataError::Io`] names when a chat template is read.
pub(super) const READ_TEMPLATE: &str = "read chat template";

/// The operation that [`DataError::Io`] names when a tokenizer is read. No flag of the worker overrides its path.
pub(super) const READ_TOKENIZER: &str = "read tokenizer";

fn remedy(operation: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if operation == READ_TOKENIZER => {
            "; the run's data.tokenizer names it, and relative paths count from the folder that the worker was started in; one of the Hugging Face Hub \
             is fetched first: `python -c \"from transformers import AutoTokenizer as T; T.from_pretrained('NAME').save_pretrained('OUT')\"` writes OUT/tokenizer.json"
        }
        io::ErrorKind::NotFound if operation == READ_TEMPLATE => {
            "; the run's data.conversations.chat_template names it, and relative paths count from the folder that the worker was started in"
        }
        io::ErrorKind::NotFound => {
            "; relative paths count from the folder that the worker was started in, and `--data` names another file"
        }
        io::ErrorKind::PermissionDenied => "; the user that runs the worker needs access to it",
        io::ErrorKind::StorageFull => "; free some space, or name another folder with `--cache-dir`",
        _ => "",
    }
}
