//! Conversations as rows of tokens: `docs/conversations.md`.

mod arguments;
mod captures;
mod conversation;
mod counts;
mod date;
mod dialogue;
mod encoded;
mod extras;
mod found;
mod generation;
mod held_out;
mod leaves;
mod message;
mod noted;
mod numbers;
mod options;
mod python;
mod rows;
mod spans;
mod table;
mod template;
#[cfg(test)]
mod tests;
mod texts;
mod traced;

use std::fmt;
use std::path::Path;

use longhaul_common::config::{Column, ConversationKind, DataConfig, DataSource, TooLong, TrainOn};

pub(crate) use self::conversation::Conversation;
pub use self::counts::ConversationCounts;
use self::date::Date;
pub use self::dialogue::Dialogue;
pub(crate) use self::encoded::Encoded;
pub use self::found::TextEnds;
pub use self::held_out::{HeldOutChat, HeldOutConversation};
pub(crate) use self::message::{field, is_filled, kind_of};
#[cfg(feature = "parquet")]
pub(crate) use self::numbers::of_float;
pub(crate) use self::numbers::{parse as parse_json, written};
pub use self::rows::{PAD, START, TOKEN_MASK, TRAINED};
pub(crate) use self::rows::{Packed, VOCABULARY_MAX, row_bytes};
pub(crate) use self::table::RowReader;
use self::template::ChatTemplate;
use super::{DataError, Tokenizer};

/// Version of the preparation of conversations. A change of it gives new names in the cache.
const VERSION: u32 = 7;

/// All that determines the rows of a source's conversations, besides the conversations and the tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct Chat {
    kind: Option<ConversationKind>,
    /// Name of the list of messages, if not after the kind.
    column: Option<String>,
    /// `None`: there is none, which pairs of texts do not need.
    template: Option<ChatTemplate>,
    /// Whether a file is named for it.
    is_named: bool,
    train_on: TrainOn,
    packing: bool,
    too_long: TooLong,
    /// Tokens of a sequence, T.
    length: u32,
    /// Text after a pair of texts; `None`: unknown.
    end: Option<String>,
    /// Special tokens that the tokenizer's file puts around a text, and pairs of texts lack.
    around: usize,
    /// What looks like control tokens in the template, without a token of the tokenizer.
    lacking: Vec<String>,
    /// Tokens that the tokenizer adds to its vocabulary, as end tokens are.
    added: Vec<String>,
}

impl Chat {
    /// Reads the settings and the template; `None`: the run has no conversations.
    ///
    /// # Errors
    /// The template cannot be read or compiled.
    pub(crate) fn of(
        source: &DataSource,
        config: &DataConfig,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, DataError> {
        let Some(settings) = &config.conversations else { return Ok(None) };
        let (vocabulary, most) = (tokenizer.vocabulary(), VOCABULARY_MAX);
        if vocabulary > most {
            let reason = format!("it has {vocabulary} tokens, and rows of conversations take {most}");
            return Err(DataError::Tokenizer { path: tokenizer.path().to_owned(), reason });
        }
        let date = match &settings.date {
            Some(date) => Some(date.parse::<Date>().map_err(|()| DataError::ChatTemplate {
                place: "data.conversations.date".to_owned(),
                reason: format!("{date} is no day of the calendar"),
            })?),
            None => None,
        };
        let beside = tokenizer.path().parent().filter(|_| tokenizer.json().is_some());
        let found = found::find(settings.chat_template.as_deref().map(Path::new), beside)?;
        let end = config.separator.clone().or_else(|| found.end());
        let column = match (&source.field, &source.column) {
            (Some(name), _) | (None, Some(Column::Name(name))) => Some(name.clone()),
            _ => None,
        };
        let template = found.template(date)?;
        let lacking = lacking(template.as_ref(), tokenizer);
        Ok(Some(Self {
            kind: settings.kind.or(column.is_some().then_some(ConversationKind::Messages)),
            column,
            template,
            is_named: settings.chat_template.is_some(),
            train_on: settings.train_on,
            packing: settings.packing,
            too_long: settings.too_long,
            length: config.sequence_length,
            end,
            around: tokenizer.tokens_around(),
            lacking,
            added: tokenizer.added_names(),
        }))
    }

    /// Returns the settings of rows of 16 tokens, with a short template.
    #[cfg(any(test, fuzzing, feature = "fuzz"))]
    pub(crate) fn plain() -> Self {
        let source = "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
        Self {
            kind: None,
            column: None,
            template: ChatTemplate::new(source, Vec::new(), None).ok(),
            is_named: false,
            train_on: TrainOn::Assistant,
            packing: true,
            too_long: TooLong::Cut,
            length: 15,
            end: Some("\n".to_owned()),
            around: 0,
            lacking: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Returns the tokens of a row: T and the last target.
    fn width(&self) -> usize {
        self.length as usize + 1
    }

    /// Returns the bytes of a row of one conversation; 0: conversations share rows.
    pub(crate) fn own_row_bytes(&self) -> u64 {
        if self.packing { 0 } else { self.row_bytes() as u64 }
    }

    /// Returns the bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        row_bytes(self.length)
    }
}

/// Returns what looks like control tokens in a template, without a token of the tokenizer.
fn lacking(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Vec<String> {
    let markers = template.into_iter().flat_map(ChatTemplate::markers);
    markers.filter(|name| !tokenizer.has_token(name)).map(str::to_owned).collect()
}

/// Shows all of it: it is part of the recipe's hash.
impl fmt::Display for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The tokenizer has the tokens around a text.
        let Self { kind, column, template, is_named, train_on, packing, too_long, length, end, .. } = self;
        let kind = kind.map_or("by their columns", ConversationKind::name);
        let template = template.as_ref().map(|template| template.hash().to_hex().to_string());
        write!(
            f,
            "conversations {VERSION}, {kind}, column {column:?}, template {}{}, {train_on:?} trained, packing {packing}, {too_long:?} beyond {length}, pairs end with {end:?}",
            template.as_deref().unwrap_or("none"),
            if *is_named { " (named)" } else { "" }
        )
    }
}
