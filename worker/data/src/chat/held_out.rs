//! Conversations to evaluate a model on: tokens, and those of the assistant.

use std::path::Path;

use longhaul_common::config::{ConversationKind, TooLong, TrainOn};
use minijinja::Value;

use super::date::Date;
use super::encoded::Encoded;
use super::message::Message;
use super::options::{by_options, error_by_options};
use super::{Chat, Conversation, Tokenizer, found};
use crate::DataError;

/// A conversation of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutConversation(Conversation);

impl HeldOutConversation {
    /// Reads a row of a file; `None`: its columns are of no conversation.
    pub(crate) fn read(row: &serde_json::Map<String, serde_json::Value>) -> Option<Result<Self, String>> {
        let has_all = |kind: &ConversationKind| kind.columns().iter().all(|name| row.contains_key(*name));
        let kind = ConversationKind::ALL.into_iter().find(has_all)?;
        let row = serde_json::from_value::<Value>(row.clone().into()).map_err(|error| error.to_string());
        let read = row.and_then(|row| Conversation::read(&row, kind, None)).map(Self);
        Some(read.map_err(|reason| by_options(&reason)))
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
    /// Takes the template in the file `given`, or else beside the tokenizer in `folder`. `date` (`YYYY-MM-DD`) is that of `strftime_now`. Without a template, pairs of texts can
    /// be tokenised alone.
    ///
    /// # Errors
    /// The template cannot be read or compiled, or the date is none.
    pub fn open(given: Option<&Path>, folder: Option<&Path>, date: Option<&str>) -> Result<Self, DataError> {
        let date = date.map(Date::read).transpose()?;
        let found = found::find(given, folder).map_err(error_by_options)?;
        let (end, template) = (found.end(), found.template(date).map_err(error_by_options)?);
        let (train_on, too_long) = (TrainOn::Assistant, TooLong::Cut);
        Ok(Self(Chat {
            kind: None,
            column: None,
            template,
            train_on,
            packing: false,
            too_long,
            length: 0,
            end,
            around: 0,
            lacking: Vec::new(),
        }))
    }

    /// Returns the tokens of a conversation, and for each whether it is the assistant's.
    ///
    /// # Errors
    /// The cause.
    pub(crate) fn encode(
        &self,
        conversation: &HeldOutConversation,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<u32>, Vec<bool>), String> {
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
        let encoded = self.0.encode(&conversation.0, tokenizer);
        let Encoded { tokens, trained, .. } = encoded.map_err(|reason| by_options(&reason))?;
        Ok((tokens, trained))
    }
}
