//! Conversations to evaluate a model on: tokens, and those of the assistant.

use std::path::Path;

use longhaul_common::config::{ConversationKind, TooLong, TrainOn};
use minijinja::Value;
use serde_json::Map;

use super::conversation::is_unread;
use super::date::Date;
use super::encoded::Encoded;
use super::message::Message;
use super::options::{by_options, error_by_options};
use super::{Chat, Conversation, Tokenizer, found, lacking};
use crate::DataError;
use crate::notes::{Note, Notes};

/// A conversation of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutConversation(Conversation);

impl HeldOutConversation {
    /// Returns the form of a row's columns; `None`: they are of no conversation.
    pub(crate) fn kind(row: &Map<String, serde_json::Value>) -> Option<ConversationKind> {
        let has_all = |kind: &ConversationKind| kind.columns().iter().all(|name| row.contains_key(*name));
        ConversationKind::ALL.into_iter().find(has_all)
    }

    /// Reads a row of a file, and notes its columns that are not read.
    ///
    /// # Errors
    /// The cause.
    pub(crate) fn read(
        row: Map<String, serde_json::Value>,
        kind: ConversationKind,
        notes: &mut Notes,
    ) -> Result<Self, String> {
        let names: Vec<String> = row.keys().cloned().collect();
        let row = serde_json::from_value::<Value>(row.into()).map_err(|error| error.to_string())?;
        let read = Conversation::read(&row, kind, None).map_err(|reason| by_options(&reason))?;
        let is_of_form = |name: &str| kind.columns().contains(&name);
        let unread = names.iter().filter(|name| !is_of_form(name) && is_unread(&row, name, kind));
        unread.for_each(|name| notes.name(Note::UnreadColumns, name));
        Ok(Self(read))
    }

    /// Returns the contents of its messages, or both texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.texts()
    }

    /// Returns the bytes of its texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes() as usize
    }
}

/// Tokenises conversations with a model's chat template.
#[derive(Clone, Debug)]
pub struct HeldOutChat(Chat);

impl HeldOutChat {
    /// Takes the template in the file `given`, or else beside `tokenizer` in `folder`. `date` (`YYYY-MM-DD`) is that of `strftime_now`. Without a template, pairs of texts can
    /// be tokenised alone.
    ///
    /// # Errors
    /// The template cannot be read or compiled, or the date is none.
    pub fn open(
        given: Option<&Path>,
        folder: Option<&Path>,
        date: Option<&str>,
        tokenizer: &Tokenizer,
    ) -> Result<Self, DataError> {
        let date = date.map(Date::read).transpose()?;
        let found = found::find(given, folder).map_err(error_by_options)?;
        let (end, template) = (found.end(), found.template(date).map_err(error_by_options)?);
        let (train_on, too_long) = (TrainOn::Assistant, TooLong::Cut);
        let lacking = lacking(template.as_ref(), tokenizer);
        Ok(Self(Chat {
            kind: None,
            column: None,
            template,
            is_named: given.is_some(),
            train_on,
            packing: false,
            too_long,
            length: 0,
            end,
            around: tokenizer.tokens_around(),
            lacking,
            added: tokenizer.added_names(),
        }))
    }

    /// Tokenises a conversation, of which the assistant's tokens count as trained on.
    ///
    /// # Errors
    /// The cause.
    pub(crate) fn encode(
        &self,
        conversation: &HeldOutConversation,
        tokenizer: &Tokenizer,
    ) -> Result<Encoded, String> {
        match &conversation.0 {
            Conversation::Messages(..) if self.0.template.is_none() => {
                return Err("the model has no chat template: name one with --chat-template".to_owned());
            }
            Conversation::Messages(messages, _) if !messages.iter().any(Message::is_scored) => {
                return Err("it has no message of the assistant to score: leave it out".to_owned());
            }
            Conversation::Pair { .. } if self.0.end.is_none() => {
                return Err("no tokenizer_config.json beside the model's tokenizer names an eos_token to end its completion: add that file".to_owned());
            }
            _ => {}
        }
        self.0.encode(&conversation.0, tokenizer).map_err(|reason| by_options(&reason))
    }
}
