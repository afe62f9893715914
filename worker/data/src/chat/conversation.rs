//! Conversations as templates take them.

use longhaul_common::config::{ConversationKind, TrainOn};
use minijinja::Value;
use minijinja::value::ValueKind;

use super::extras::Extras;
use super::message::{ASSISTANT, Message, SYSTEM, field, is_filled, is_nothing, kind_of, text};

/// Columns with a meaning that training would ignore.
const UNREAD: [&str; 9] =
    ["functions", "documents", "image", "images", "video", "videos", "audio", "audios", "history"];
/// The column of a system text.
const SYSTEM_COLUMN: &str = "system";
/// The column of the worse answers of preference data.
const REJECTED: &str = "rejected";
/// The column that tells good completions from bad ones, in preference data (KTO).
const LABEL: &str = "label";
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
pub(super) fn is_beside(name: &str, kind: ConversationKind) -> bool {
    let is_of_kind = match kind {
        ConversationKind::Alpaca => name == "input",
        ConversationKind::PromptCompletion => [LABEL, REJECTED].contains(&name),
        ConversationKind::Messages | ConversationKind::Sharegpt => false,
    };
    let is_of_all = name == SYSTEM_COLUMN || UNREAD.contains(&name);
    is_of_kind || is_of_all || Extras::COLUMNS.contains(&name)
}

/// Whether a column has something and is not read, unless it names the form.
pub(super) fn is_unread(row: &Value, name: &str, kind: ConversationKind) -> bool {
    // Another label than that of preference data.
    (!is_beside(name, kind) || name == LABEL) && is_filled(&field(row, name))
}

impl Conversation {
    /// Reads a row of a file. `column` names the list of messages, if not after the kind.
    ///
    /// # Errors
    /// The cause.
    pub(crate) fn read(row: &Value, kind: ConversationKind, column: Option<&str>) -> Result<Self, String> {
        check_beside(row, kind)?;
        let (system, extras) = (system(row)?, Extras::read(row)?);
        let messages = match kind {
            ConversationKind::Messages => list(row, column.unwrap_or("messages"))?,
            ConversationKind::Sharegpt => list(row, column.unwrap_or("conversations"))?,
            ConversationKind::Alpaca => alpaca(row)?,
            ConversationKind::PromptCompletion => {
                if !["prompt", "completion"].iter().any(|name| is_list(&field(row, name))) {
                    let found = if system.is_some() { Some(SYSTEM_COLUMN) } else { extras.first() };
                    return pair(row, found);
                }
                completed(row)?
            }
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

    /// Returns its texts that are trained on, but for prompts of pairs, and nothing beside calls of tools.
    pub(super) fn answers(&self, train_on: TrainOn) -> Vec<&str> {
        let is_answer = |message: &&Message| match train_on {
            TrainOn::Assistant => message.is_scored(),
            TrainOn::All => message.is_trained != Some(false),
        };
        let is_text = |message: &&Message| message.calls().is_none() || !message.content.trim().is_empty();
        match self {
            Self::Messages(messages, _) => {
                let answers = messages.iter().filter(is_answer).filter(is_text);
                answers.map(|message| message.content.as_str()).collect()
            }
            Self::Pair { completion, .. } => vec![completion],
        }
    }

    /// Returns the contents of its messages, or both texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let (messages, pair) = match self {
            Self::Messages(messages, _) => (messages.as_slice(), None),
            Self::Pair { prompt, completion } => (&[][..], Some([prompt.as_str(), completion])),
        };
        messages.iter().map(|message| message.content.as_str()).chain(pair.into_iter().flatten())
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

/// Refuses a record with a column whose meaning training would ignore.
fn check_beside(row: &Value, kind: ConversationKind) -> Result<(), String> {
    if let Some(name) = UNREAD.into_iter().find(|name| is_filled(&field(row, name))) {
        return Err(format!(
            "it has {name}, and conversations of texts alone are read: leave the record out, or the column if the texts stand without it"
        ));
    }
    // Lists of messages beside rejected ones are usual: the column is counted as unread.
    if kind == ConversationKind::PromptCompletion && is_filled(&field(row, REJECTED)) {
        return Err(format!(
            "it has {REJECTED}, as preference data, which is not read: leave the column out to train on the other texts alone"
        ));
    }
    if kind == ConversationKind::PromptCompletion && field(row, LABEL).kind() == ValueKind::Bool {
        return Err(format!(
            "its {LABEL} is a boolean, as in preference data (KTO), which is not read: leave out the records with false, and the column"
        ));
    }
    Ok(())
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
    let [prompt, completion] = [text(row, "prompt")?, text(row, "completion")?];
    if let Some(name) = found {
        return Err(format!(
            "it has {name}, and a prompt and completion of texts have no chat template: leave the column out, or write them as lists of messages"
        ));
    }
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
    if !is_list(&value) {
        return Err(format!("its `{name}` is {}, and no list of messages", kind_of(&value)));
    }
    let entries = value.try_iter().map_err(|error| error.to_string())?;
    let read = |(at, entry): (usize, Value)| {
        Message::read(&entry).map_err(|reason| format!("message {} of `{name}`: {reason}", at + 1))
    };
    entries.enumerate().map(read).collect()
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}
