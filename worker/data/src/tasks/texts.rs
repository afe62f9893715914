//! Held-out texts for perplexity.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TaskError;
use super::encoding::TEXT_BYTES_MAX;
use super::error::{EXAMPLES_MAX, check_file};
use super::fields::kind_of;
use super::file::names;
use crate::chat::HeldOutConversation;
use crate::json::is_filled;
use crate::notes::{Note, Notes};
use crate::odd_texts::OddTexts;
use crate::records::whole_rows::{Row, RowFormat, UnreadColumn, open, whole_text};

/// Bytes at the start of a text that have its first token.
pub(super) const START_BYTES: usize = 4096;
/// Most bytes of a file's texts: they are kept in memory.
const BYTES_MAX: usize = 1 << 30;

/// The texts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutFile {
    /// The file.
    pub path: PathBuf,
    /// Its texts, in order: one of plain text, or one a row; conversations in rows of their columns.
    pub documents: Vec<Document>,
    /// Those in rows that are probably unintended.
    pub odd: OddTexts,
    /// Notes on columns.
    pub notes: Notes,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its place: `line`, `element` or `row`, and its number.
    pub at: (&'static str, u64),
    /// The text or conversation.
    pub content: Content,
}

/// The content of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A text, all of which is scored.
    Text(String),
    /// A conversation, of which the assistant's words are scored.
    Conversation(HeldOutConversation),
}

impl Content {
    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Conversation(conversation) => conversation.bytes(),
        }
    }
}

impl HeldOutFile {
    /// Reads the first texts of a file, up to `limit`: of the column `column` where it has rows, or conversations in rows
    /// without that column; otherwise, the whole file is one.
    ///
    /// # Errors
    /// It cannot be read, has no such column, or some row has no text there: the error counts such rows and names the first.
    pub fn read(path: &Path, column: &str, limit: Option<usize>) -> Result<Self, TaskError> {
        let own = path.to_owned();
        check_file(path)?;
        let too_much = |bytes: usize, remedy| TaskError::TooMuch {
            path: own.clone(),
            most: format!("{} MiB of text", bytes >> 20),
            remedy,
        };
        let Some(format) = RowFormat::of(path) else {
            let text = whole_text(path, TEXT_BYTES_MAX as u64)?;
            let text = text.ok_or_else(|| too_much(TEXT_BYTES_MAX, "divide it into several files"))?;
            if text.is_empty() {
                return Err(TaskError::Empty { path: own });
            }
            return Ok(Self {
                path: own,
                documents: vec![Document { at: ("line", 1), content: Content::Text(text) }],
                odd: OddTexts::default(),
                notes: Notes::default(),
            });
        };
        let (mut documents, mut wrong, mut examples, mut bytes) = (Vec::new(), 0, Vec::new(), 0);
        let (mut is_first, mut odd, mut notes) = (true, OddTexts::default(), Notes::default());
        for row in open(path, format, |_| None)?.take(limit.unwrap_or(usize::MAX)) {
            let row = row?;
            let (at, unread) = ((row.unit, row.number), row.unread);
            if let Ok(row) = &row.row
                && std::mem::take(&mut is_first)
            {
                check_columns(path, row, column, &unread)?;
            }
            match row.row.and_then(|row| content_of(row, column, &mut notes)) {
                Ok(content) => {
                    unread.iter().for_each(|column| notes.name(Note::UnreadColumns, &column.to_string()));
                    if let Content::Text(text) = &content {
                        odd.see(text);
                    }
                    bytes += content.bytes();
                    documents.push(Document { at, content });
                }
                Err(reason) => {
                    wrong += 1;
                    if examples.len() < EXAMPLES_MAX {
                        examples.push(format!("{} {}: {reason}", at.0, at.1));
                    }
                }
            }
            if bytes > BYTES_MAX {
                return Err(too_much(BYTES_MAX, "divide it, or give --limit"));
            }
        }
        let all = documents.len() as u64 + wrong;
        match (all, wrong) {
            (0, _) => Err(TaskError::Empty { path: own }),
            (_, 0) => Ok(Self { path: own, documents, odd: odd.among(all, false), notes }),
            _ => Err(TaskError::Rows {
                path: own,
                kind: format!("texts (column `{column}`)"),
                wrong,
                all,
                examples,
            }),
        }
    }

    /// Returns the place of a text in words.
    #[must_use]
    pub fn place(&self, document: &Document) -> String {
        let (unit, number) = document.at;
        format!("{}, {unit} {number}", self.path.display())
    }
}

/// Refuses a file whose first row has neither a text nor a conversation.
fn check_columns(path: &Path, row: &Row, column: &str, unread: &[UnreadColumn]) -> Result<(), TaskError> {
    if row.contains_key(column) || HeldOutConversation::kind(row).is_some() {
        return Ok(());
    }
    let remedy =
        format!("there is no text `{column}` among them: name the one of the text with --text-column");
    Err(TaskError::Columns { path: path.to_owned(), found: names(row, unread), remedy })
}

fn content_of(mut row: Row, column: &str, notes: &mut Notes) -> Result<Content, String> {
    match row.remove(column) {
        Some(Value::String(text)) if text.len() > TEXT_BYTES_MAX => {
            Err(format!("its text has more than {TEXT_BYTES_MAX} bytes"))
        }
        Some(Value::String(text)) => {
            let unread = row.iter().filter(|(_, value)| is_filled(value));
            unread.for_each(|(name, _)| notes.name(Note::UnreadColumns, name));
            Ok(Content::Text(text))
        }
        None => match HeldOutConversation::kind(&row) {
            Some(kind) => HeldOutConversation::read(row, kind, notes).map(Content::Conversation),
            None => Err(format!("it has no `{column}`")),
        },
        other => Err(format!("its `{column}` is {}, and no text", kind_of(other.as_ref()))),
    }
}
