//! Texts to scored tokens, as lm-evaluation-harness does it (`TemplateLM._encode_pair`, `HFLM._loglikelihood_tokens`).

use super::windows::{Window, windows};
use super::{Content, Item, Pair, TaskError, TaskFile};
use crate::chat::Encoded;
use crate::control_tokens::ControlTokens;
use crate::{HeldOutChat, Notes, Tokenizer};

/// Most bytes of a text tokenised at once.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 20;

/// A whole text in windows of a model's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeText {
    /// Its windows.
    pub windows: Vec<ScoredTokens>,
    /// For each scored token of all windows, whether it counts.
    pub counted: Vec<bool>,
    /// Bytes of the counted tokens; `None`: unknown, for conversations.
    pub bytes: Option<usize>,
    /// Notes on the text or conversation, as in a preparation.
    pub notes: Notes,
}

/// Encodes texts for a model.
#[derive(Clone, Debug)]
pub struct Encoder {
    tokenizer: Tokenizer,
    /// Of that tokenizer and of others.
    control_tokens: ControlTokens,
    /// Tokens that the tokenizer's file puts before each text, such as `<s>`.
    beginning: Vec<u32>,
    /// Token before texts without a beginning.
    first: Option<u32>,
    context: usize,
}

/// Tokens of which the end is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredTokens {
    /// All tokens: one more than the context at most.
    pub tokens: Vec<u32>,
    /// Index of the first scored token.
    pub from: usize,
    /// Whether tokens were cut off on the left to fit the context.
    pub is_cut: bool,
}

impl Encoder {
    /// Creates an encoder for a model that sees `context` tokens. `first` is the token before a text for which the tokenizer's file has none: its `bos_token`, or else
    /// its `eos_token`.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, first: Option<u32>, context: usize) -> Self {
        let control_tokens = ControlTokens::of(&tokenizer, "");
        Self { beginning: tokenizer.beginning(), first, tokenizer, control_tokens, context }
    }

    /// Returns its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Encodes those questions of a file that a model may be unable to score: with an answer that may not fit its context, or without text before it.
    ///
    /// # Errors
    /// Names the first question that cannot be scored.
    pub fn check(&self, file: &TaskFile) -> Result<(), TaskError> {
        for question in &file.questions {
            let before = file.before(question);
            let encoded = match &question.item {
                Item::Choice(choice) => choice
                    .pairs
                    .iter()
                    .filter(|pair| {
                        let context = [before.as_str(), &pair.context].concat();
                        let text = context.trim_end();
                        // No token is shorter than a byte.
                        let bytes = context.len() - text.len() + pair.continuation.len();
                        text.is_empty() || bytes > self.context
                    })
                    .try_for_each(|pair| self.pair(&before, pair).map(drop)),
                Item::Answer(answer) if before.is_empty() && answer.prompt.trim().is_empty() => {
                    self.prompt(&answer.prompt, 1).map(drop)
                }
                Item::Answer(_) => Ok(()),
            };
            encoded.map_err(|reason| TaskError::Question { place: file.place(question), reason })?;
        }
        Ok(())
    }

    /// Encodes a pair whose context follows `before`. Blanks at the end of the context belong to the continuation; both are encoded together and divided at the length of
    /// the encoded context.
    ///
    /// # Errors
    /// The tokenizer refuses it, or the continuation has no token or more than the context.
    pub fn pair(&self, before: &str, pair: &Pair) -> Result<ScoredTokens, String> {
        let whole = [before, &pair.context, &pair.continuation].concat();
        let context = &whole[..before.len() + pair.context.len()];
        let context = context.trim_end();
        let (mut tokens, known) = match (context.is_empty(), self.first) {
            (true, None) => {
                return Err(
                    "nothing stands before the scored text, and the model has no token for its beginning"
                        .to_owned(),
                );
            }
            (true, Some(first)) => {
                let mut tokens = self.tokenizer.encode(&whole)?;
                if tokens.first() != Some(&first) {
                    tokens.insert(0, first);
                }
                (tokens, 1)
            }
            (false, _) => (self.text(&whole)?, self.text(context)?.len()),
        };
        let scored = tokens.len().saturating_sub(known);
        if scored == 0 {
            return Err(
                "its answer has no token of its own: the tokenizer merges it with the text before".to_owned()
            );
        }
        if scored > self.context {
            return Err(format!(
                "its answer has {scored} tokens, and the model sees {}: leave the question out",
                self.context
            ));
        }
        let cut = tokens.len().saturating_sub(self.context + 1);
        tokens.drain(..cut);
        Ok(ScoredTokens { from: tokens.len() - scored, tokens, is_cut: cut > 0 })
    }

    /// Encodes a prompt with room for `room` tokens behind it; returns whether it was cut on the left too.
    ///
    /// # Errors
    /// The tokenizer refuses it, or it has no tokens.
    pub fn prompt(&self, text: &str, room: usize) -> Result<(Vec<u32>, bool), String> {
        let mut tokens = self.text(text)?;
        if tokens.is_empty() {
            return Err("its prompt has no tokens".to_owned());
        }
        let cut = tokens.len().saturating_sub(self.context.saturating_sub(room).max(1));
        tokens.drain(..cut);
        Ok((tokens, cut > 0))
    }

    /// Encodes a whole text, and divides it into windows of the context. If the model has no token for the beginning of a text, nothing predicts the first token, which is
    /// not scored. Of a conversation, the assistant's tokens count.
    ///
    /// # Errors
    /// The tokenizer or the chat template refuses it.
    pub fn whole(&self, content: &Content, chat: Option<&HeldOutChat>) -> Result<WholeText, String> {
        let text = match content {
            Content::Text(text) => text,
            Content::Conversation(conversation) => {
                let chat = chat.ok_or("no chat template was opened for it")?;
                let Encoded { tokens, trained, mut notes, .. } =
                    chat.encode(conversation, &self.tokenizer)?;
                conversation.texts().for_each(|text| self.control_tokens.note(text, &mut notes));
                let counted = trained.into_iter().skip(1).collect();
                return Ok(WholeText { windows: self.windows(&tokens), counted, bytes: None, notes });
            }
        };
        let mut notes = Notes::default();
        self.control_tokens.note(text, &mut notes);
        // Of several tokens before each text, one is enough for the first prediction.
        let start = self.beginning.last().copied().or(self.first);
        let unscored = if start.is_none() { self.bytes_of_first(text)? } else { 0 };
        let tokens: Vec<u32> = start.into_iter().chain(self.tokenizer.encode(text)?).collect();
        let counted = vec![true; tokens.len().saturating_sub(1)];
        Ok(WholeText { windows: self.windows(&tokens), counted, bytes: Some(text.len() - unscored), notes })
    }

    fn windows(&self, tokens: &[u32]) -> Vec<ScoredTokens> {
        let part = |Window { start, end, from }| ScoredTokens {
            tokens: tokens[start..end].to_vec(),
            from,
            is_cut: false,
        };
        windows(tokens.len(), self.context).into_iter().map(part).collect()
    }

    /// Returns the bytes under the first token of a text.
    fn bytes_of_first(&self, text: &str) -> Result<usize, String> {
        let start = &text[..text.floor_char_boundary(super::texts::START_BYTES)];
        Ok(self.tokenizer.encode_with_places(start)?.first().map_or(0, |(_, place)| place.end))
    }

    fn text(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut tokens = self.beginning.clone();
        tokens.extend(self.tokenizer.encode(text)?);
        Ok(tokens)
    }
}
