//! Conversations of a file, whose form is recognised by its columns.

use std::path::{Path, PathBuf};

use longhaul_common::config::ConversationKind;
use minijinja::Value;

#[cfg(feature = "parquet")]
use super::conversation::is_beside;
use super::conversation::is_unread;
use super::{Chat, Conversation};
use crate::DataError;
use crate::notes::{Note, Notes, UnreadColumns};

/// Most columns in a message.
const SHOWN_MAX: usize = 20;

/// Reads the conversations of a file.
#[derive(Debug)]
pub(crate) struct RowReader {
    path: PathBuf,
    chat: Chat,
    /// Known with the first row.
    kind: Option<ConversationKind>,
    /// Columns of a table that are not read.
    unread: UnreadColumns,
    notes: Notes,
}

impl RowReader {
    pub(crate) fn new(chat: &Chat, path: &Path) -> Self {
        let (unread, notes) = (UnreadColumns::default(), Notes::default());
        Self { path: path.to_owned(), chat: chat.clone(), kind: None, unread, notes }
    }

    /// Learns the columns of a table, and returns the indices of those to be read.
    ///
    /// # Errors
    /// They are of no form, or of several; or there is no chat template.
    #[cfg(feature = "parquet")]
    pub(crate) fn columns(&mut self, columns: &[&str]) -> Result<Vec<usize>, DataError> {
        let kind = self.learn(columns)?;
        for wanted in self.wanted(kind) {
            match columns.iter().filter(|name| **name == wanted).count() {
                1 => {}
                0 => return Err(self.refused(format!("it has no column `{wanted}`; {}", named(columns)))),
                _ => {
                    return Err(self.refused(format!("two of its columns are called `{wanted}`: rename one")));
                }
            }
        }
        let is_read = |at: &usize| self.is_of_form(columns[*at], kind) || is_beside(columns[*at], kind);
        let (read, unread): (Vec<usize>, Vec<usize>) = (0..columns.len()).partition(is_read);
        let unread = unread.into_iter().map(|at| columns[at].to_owned());
        self.unread = UnreadColumns::of(unread.collect());
        Ok(read)
    }

    /// Reads a row, an object; returns a conversation, or the reason why it is none.
    ///
    /// # Errors
    /// It is the first one, and its columns are of no form, or of several; or there is no chat template.
    pub(crate) fn read(&mut self, row: &Value) -> Result<Result<Conversation, String>, DataError> {
        let keys: Vec<Value> = row.try_iter().map(Iterator::collect).unwrap_or_default();
        let columns: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        let kind = self.learn(&columns)?;
        if let Some(missing) = self.wanted(kind).find(|wanted| !columns.contains(wanted)) {
            let told = || format!("it has no field `{missing}`; {}", named(&columns));
            return Ok(Err(of_a_message(&columns).unwrap_or_else(told)));
        }
        let read = Conversation::read(row, kind, self.chat.column.as_deref());
        if read.is_ok() {
            let is_unread = |name: &&str| !self.is_of_form(name, kind) && is_unread(row, name, kind);
            let unread: Vec<&str> = columns.into_iter().filter(is_unread).collect();
            unread.into_iter().for_each(|name| self.notes.name(Note::UnreadColumns, name));
            self.unread.see_row();
        }
        Ok(read)
    }

    /// Takes the notes on the rows since the last call.
    pub(crate) fn take_notes(&mut self) -> Notes {
        self.unread.note(&mut self.notes);
        std::mem::take(&mut self.notes)
    }

    fn is_of_form(&self, name: &str, kind: ConversationKind) -> bool {
        self.wanted(kind).any(|wanted| wanted == name)
    }

    fn wanted(&self, kind: ConversationKind) -> impl Iterator<Item = &str> {
        let list = self.chat.column.as_deref();
        list.into_iter().chain(kind.columns().iter().copied().filter(move |_| list.is_none()))
    }

    fn learn(&mut self, columns: &[&str]) -> Result<ConversationKind, DataError> {
        if let Some(kind) = self.kind {
            return Ok(kind);
        }
        let kind = match self.chat.kind {
            Some(kind) => kind,
            None => recognised(columns).map_err(|reason| self.refused(reason))?,
        };
        if self.chat.template.is_none() && kind != ConversationKind::PromptCompletion {
            return Err(self.refused(
                "conversations need a chat template, and there is none: neither `chat_template.jinja` nor a tokenizer_config.json with `chat_template` is beside the tokenizer; name a file in data.conversations.chat_template".to_owned(),
            ));
        }
        self.kind = Some(kind);
        Ok(kind)
    }

    fn refused(&self, reason: String) -> DataError {
        DataError::Conversations { path: self.path.clone(), reason }
    }
}

/// Returns the only form with these columns.
fn recognised(columns: &[&str]) -> Result<ConversationKind, String> {
    let has_all = |kind: &ConversationKind| kind.columns().iter().all(|name| columns.contains(name));
    let found: Vec<ConversationKind> = ConversationKind::ALL.into_iter().filter(has_all).collect();
    let names = |kinds: &[ConversationKind]| {
        let shown = |kind: &ConversationKind| format!("{} ({})", kind.name(), kind.columns().join(", "));
        kinds.iter().map(shown).collect::<Vec<_>>().join("; ")
    };
    match found[..] {
        [kind] => Ok(kind),
        [] if let Some(remedy) = of_a_message(columns) => Err(remedy),
        [] => Err(format!(
            "its columns are of no known form of conversations; {}; known are {}; a list of messages under another name is named by field or column of the source",
            named(columns),
            names(&ConversationKind::ALL)
        )),
        _ => Err(format!(
            "its columns are of several forms, {}: say one in data.conversations.kind; {}",
            names(&found),
            named(columns)
        )),
    }
}

/// Returns the remedy for a file whose objects are messages.
fn of_a_message(columns: &[&str]) -> Option<String> {
    let [role, content] = [["role", "content"], ["from", "value"]]
        .into_iter()
        .find(|names| names.iter().all(|name| columns.contains(name)))?;
    Some(format!(
        "its objects have `{role}` and `{content}`, so they are messages, and each list of them is a conversation: `jq -c '{{messages: .}}' IN > OUT.jsonl` makes records of the lists"
    ))
}

fn named(columns: &[&str]) -> String {
    let shown: Vec<String> = columns.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = columns.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match shown.is_empty() {
        true => "it has no columns".to_owned(),
        false => format!("its columns are {}{more}", shown.join(", ")),
    }
}
