//! Conversations as templates take them.

use longhaul_common::config::ConversationKind;
use minijinja::Value;
use minijinja::value::ValueKind;

use super::extras::Extras;
use super::message::{ASSISTANT, Message, SYSTEM, field, is_nothing, kind_of, text};

/// Columns with a meaning that training would ignore.
const UNREAD: [&str; 9] =
    ["functions", "documents", "image", "images", "video", "videos", "audio", "audios", "history"];
/// The column of a system text.
const SYSTEM_COLUMN: &str = "system";
/// Most messages of a conversation: thousands of times the usual number. Prefixes are rendered for each.
const MESSAGES_MAX: usize = 1 << 14;

/// A conversation, or a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conversation {
    /// At least one message.
    Messages(Vec<Message>, Extras),
    /// Without a template.
    Pair { prompt: String, completion: String },
}

/// Whether a column is read beside those that name a form.
#[cfg(feature = "parquet")]
pub(super) fn is_beside(name: &str) -> bool {
    name == SYSTEM_COLUMN || name == "input" || UNREAD.contains(&name) || Extras::COLUMNS.contains(&name)
}

impl Conversation {
    /// Reads a row of a file. `column` names the list of messages, if not after the kind.
    ///
    /// # Errors
    /// The cause.
    pub(crate) fn read(row: &Value, kind: ConversationKind, column: Option<&str>) -> Result<Self, String> {
        for name in UNREAD {
            let value = field(row, name);
            if !is_nothing(&value) && value.len() != Some(0) {
                return Err(format!(
                    "it has {name}, and conversations of texts alone are read: leave the record out, or the column if the texts stand without it"
                ));
            }
        }
        let (system, extras) = (system(row)?, Extras::read(row)?);
        let messages = match kind {
            ConversationKind::Messages => list(row, column.unwrap_or("messages"))?,
            ConversationKind::Sharegpt => list(row, column.unwrap_or("conversations"))?,
            ConversationKind::Alpaca => alpaca(row)?,
            ConversationKind::PromptCompletion => match (field(row, "prompt"), field(row, "completion")) {
                (prompt, completion) if prompt.as_str().is_some() && completion.as_str().is_some() => {
                    let found = if system.is_some() { Some(SYSTEM_COLUMN) } else { extras.first() };
                    return pair(row, found);
                }
                _ => completed(row)?,
            },
        };
        // A first turn of the system stands alone, as in axolotl.
        let system = system.filter(|_| messages.first().is_none_or(|first| first.role != SYSTEM));
        let all: Vec<Message> = system.into_iter().chain(messages).collect();
        match all.len() {
            0 => Err("it has no messages".to_owned()),
            count if count > MESSAGES_MAX => {
                Err(format!("it has {count} messages, and {MESSAGES_MAX} at most are read: divide it"))
            }
            _ => Ok(Self::Messages(all, extras)),
        }
    }

    /// Returns the number of messages; 2 for a pair.
    pub(super) fn turns(&self) -> u64 {
        match self {
            Self::Messages(messages, _) => messages.len() as u64,
            Self::Pair { .. } => 2,
        }
    }

    /// Returns the bytes of its texts.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Messages(messages, extras) => {
                messages.iter().map(|message| message.content.len() as u64).sum::<u64>() + extras.bytes()
            }
            Self::Pair { prompt, completion } => (prompt.len() + completion.len()) as u64,
        }
    }

    /// Hashes all that determines its tokens.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        match self {
            Self::Pair { prompt, completion } => ["pair", prompt, completion].into_iter().for_each(add),
            Self::Messages(messages, extras) => {
                add("messages");
                for message in messages {
                    add(&format!("{:?} {}", message.is_trained, message.fields.len()));
                    for (name, value) in &message.fields {
                        add(name);
                        // Types matter: `1` is not `"1"`.
                        add(&format!(
                            "{:?} {}",
                            value.kind(),
                            serde_json::to_string(value).unwrap_or_default()
                        ));
                    }
                }
                add(extras.written());
            }
        }
    }
}

/// Returns the message of the column of a system text; `None`: it is absent or empty.
fn system(row: &Value) -> Result<Option<Message>, String> {
    let value = field(row, SYSTEM_COLUMN);
    if is_nothing(&value) || value.as_str() == Some("") {
        return Ok(None);
    }
    Message::plain(SYSTEM, text(row, SYSTEM_COLUMN)?).map(Some)
}

/// Returns a pair of texts. `found` is a column that only a template could take.
fn pair(row: &Value, found: Option<&str>) -> Result<Conversation, String> {
    if let Some(name) = found {
        return Err(format!(
            "it has {name}, and a prompt and completion of texts have no chat template: leave the column out, or write them as lists of messages"
        ));
    }
    let [prompt, completion] = [text(row, "prompt")?, text(row, "completion")?];
    let pair = Conversation::Pair { prompt, completion };
    if pair.bytes() == 0 { Err("it is empty".to_owned()) } else { Ok(pair) }
}

fn alpaca(row: &Value) -> Result<Vec<Message>, String> {
    let (instruction, output) = (text(row, "instruction")?, text(row, "output")?);
    let input = field(row, "input");
    let prompt = match (input.as_str(), is_nothing(&input)) {
        (None, false) => return Err(format!("its input is {}, and no text", kind_of(&input))),
        (None | Some(""), _) => instruction,
        (Some(input), _) => format!("{instruction}\n{input}"),
    };
    Ok(vec![Message::plain("user", prompt)?, Message::plain(ASSISTANT, output)?])
}

/// Returns a prompt and its completion as one conversation, of which the completion is trained on.
fn completed(row: &Value) -> Result<Vec<Message>, String> {
    let mut messages = list(row, "prompt")?;
    for message in messages.iter_mut().filter(|message| message.role == ASSISTANT) {
        message.is_trained = Some(false);
    }
    messages.extend(list(row, "completion")?);
    Ok(messages)
}

fn list(row: &Value, name: &str) -> Result<Vec<Message>, String> {
    let value = field(row, name);
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(format!("its `{name}` is {}, and no list of messages", kind_of(&value)));
    }
    let entries = value.try_iter().map_err(|error| error.to_string())?;
    let read = |(at, entry): (usize, Value)| {
        Message::read(&entry).map_err(|reason| format!("message {} of `{name}`: {reason}", at + 1))
    };
    entries.enumerate().map(read).collect()
}
