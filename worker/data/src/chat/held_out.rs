//! Conversations to evaluate a model on: tokens, and those of the assistant.

use std::path::Path;

use longhaul_common::config::{ConversationKind, TooLong, TrainOn};
use minijinja::Value;

use super::encoded::Encoded;
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
        Some(row.and_then(|row| Conversation::read(&row, kind, None)).map(Self))
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
    /// Finds the template beside a tokenizer. Without one, pairs of texts can be tokenised alone.
    ///
    /// # Errors
    /// It cannot be read or compiled.
    pub fn beside(folder: Option<&Path>) -> Result<Self, DataError> {
        let found = found::find(None, folder)?;
        let (end, template) = (found.end(), found.template(None)?);
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
        let is_chat = matches!(conversation.0, Conversation::Messages(..));
        if is_chat && self.0.template.is_none() {
            return Err(
                "the model has no chat template: put its `chat_template.jinja` beside its tokenizer.json"
                    .to_owned(),
            );
        }
        let Encoded { tokens, trained, .. } = self.0.encode(&conversation.0, tokenizer)?;
        Ok((tokens, trained))
    }
}
