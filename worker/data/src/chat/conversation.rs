//! Conversations as templates take them.

use longhaul_common::config::ConversationKind;
use minijinja::Value;
use minijinja::value::ValueKind;

use super::template::has_marks;

/// Fields of a message that say whether it is trained on, and are no part of it for templates.
const TRAINED: [&str; 3] = ["train", "training", "weight"];
/// Names under which a message has its reasoning: transformers passes it under the first two, whichever it has.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// The role whose messages are trained on.
pub(super) const ASSISTANT: &str = "assistant";
const ROLES: [&str; 5] = ["system", "developer", "user", ASSISTANT, "tool"];
/// Roles of ShareGPT.
const SHARE_GPT_ROLES: [(&str, &str); 4] =
    [("human", "user"), ("gpt", ASSISTANT), ("chatgpt", ASSISTANT), ("model", ASSISTANT)];
/// Columns with a meaning that training would ignore.
const UNREAD: [&str; 5] = ["tools", "functions", "documents", "images", "history"];
/// Most messages of a conversation: thousands of times the usual number. Prefixes are rendered for each.
const MESSAGES_MAX: usize = 1 << 14;

/// A conversation, or a pair of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conversation {
    /// At least one message.
    Messages(Vec<Message>),
    /// Without a template.
    Pair { prompt: String, completion: String },
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(super) role: String,
    content: String,
    /// All fields for the template, in order.
    fields: Vec<(String, Value)>,
    /// Whether it says so itself.
    pub(super) is_trained: Option<bool>,
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
                    "it has {name}, which are not passed to the chat template: leave them out"
                ));
            }
        }
        let messages = match kind {
            ConversationKind::Messages => list(row, column.unwrap_or("messages"))?,
            ConversationKind::Sharegpt => list(row, column.unwrap_or("conversations"))?,
            ConversationKind::Alpaca => alpaca(row)?,
            ConversationKind::PromptCompletion => match (field(row, "prompt"), field(row, "completion")) {
                (prompt, completion) if prompt.as_str().is_some() && completion.as_str().is_some() => {
                    let [prompt, completion] = [text(row, "prompt")?, text(row, "completion")?];
                    let pair = Self::Pair { prompt, completion };
                    return if pair.bytes() == 0 { Err("it is empty".to_owned()) } else { Ok(pair) };
                }
                _ => completed(row)?,
            },
        };
        let system = field(row, "system");
        let mut all = match system.as_str() {
            Some(system) if !system.is_empty() && kind != ConversationKind::Messages => {
                vec![Message::plain("system", system.to_owned())?]
            }
            _ => Vec::new(),
        };
        all.extend(messages);
        match all.len() {
            0 => Err("it has no messages".to_owned()),
            count if count > MESSAGES_MAX => {
                Err(format!("it has {count} messages, and {MESSAGES_MAX} at most are read: divide it"))
            }
            _ => Ok(Self::Messages(all)),
        }
    }

    /// Returns the number of messages; 2 for a pair.
    pub(super) fn turns(&self) -> u64 {
        match self {
            Self::Messages(messages) => messages.len() as u64,
            Self::Pair { .. } => 2,
        }
    }

    /// Returns the bytes of its texts.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Messages(messages) => messages.iter().map(|message| message.content.len() as u64).sum(),
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
            Self::Messages(messages) => {
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
            }
        }
    }
}

impl Message {
    pub(super) fn plain(role: &str, content: String) -> Result<Self, String> {
        let pairs = [("role", Value::from(role)), ("content", Value::from(content))];
        Self::read(&Value::from_pairs(pairs))
    }

    fn read(entry: &Value) -> Result<Self, String> {
        if entry.kind() != ValueKind::Map {
            return Err(format!("it is {}, and no object with a role and its content", kind_of(entry)));
        }
        let is_share_gpt = is_nothing(&field(entry, "role")) && !is_nothing(&field(entry, "from"));
        let [role_name, content_name] = if is_share_gpt { ["from", "value"] } else { ["role", "content"] };
        let (role, content) = (text(entry, role_name)?, text(entry, content_name)?);
        let renamed = SHARE_GPT_ROLES.iter().find(|(name, _)| is_share_gpt && *name == role);
        let role = renamed.map_or(role.clone(), |(_, role)| (*role).to_owned());
        if !ROLES.contains(&role.as_str()) {
            let known = ROLES.join(", ");
            return Err(format!(
                "its role is {role:?}, and known ones are {known}: rename it, or leave the conversation out"
            ));
        }
        let is_trained = trained(entry)?;
        if is_trained == Some(true) && role != ASSISTANT {
            return Err(format!(
                "it is to be trained on, and of the role {role:?}: only messages of the assistant are; leave the field out, or say data.conversations.train_on = \"all\""
            ));
        }
        let mut fields = Vec::new();
        for key in entry.try_iter().map_err(|error| error.to_string())? {
            let (Some(name), value) = (key.as_str(), entry.get_item(&key).unwrap_or_default()) else {
                continue;
            };
            // As transformers does.
            if is_nothing(&value) || TRAINED.contains(&name) {
                continue;
            }
            match name {
                name if name == role_name => fields.push(("role".to_owned(), Value::from(role.as_str()))),
                name if name == content_name => {
                    fields.push(("content".to_owned(), Value::from(content.as_str())))
                }
                "train_detail" => {
                    return Err(
                        "it has train_detail, which is not read: leave it out, or divide the message"
                            .to_owned(),
                    );
                }
                _ if has_marks(&serde_json::to_string(&value).unwrap_or_default()) => {
                    return Err(marked(name));
                }
                _ => fields.push((name.to_owned(), value)),
            }
        }
        with_reasoning(&mut fields);
        Ok(Self { role, content, fields, is_trained })
    }

    /// Returns it for a template.
    pub(super) fn value(&self) -> Value {
        Value::from_pairs(self.fields.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }
}

/// Passes reasoning under its standard name, and under `thinking`.
fn with_reasoning(fields: &mut Vec<(String, Value)>) {
    let found = REASONING.iter().find_map(|name| fields.iter().find(|(own, _)| own == name));
    let Some((_, reasoning)) = found.cloned() else { return };
    if !fields.iter().any(|(name, _)| name == "thinking") {
        fields.insert(0, ("thinking".to_owned(), reasoning.clone()));
    }
    match fields.iter_mut().find(|(name, _)| name == REASONING[0]) {
        Some((_, own)) => *own = reasoning,
        None => fields.push((REASONING[0].to_owned(), reasoning)),
    }
}

/// Returns whether a message says that it is trained on: `train`, or `weight` of 0 or 1.
fn trained(entry: &Value) -> Result<Option<bool>, String> {
    let mut found = None;
    for name in TRAINED {
        let value = field(entry, name);
        let says = match (value.kind(), f64::try_from(value.clone()).ok()) {
            _ if is_nothing(&value) => continue,
            (ValueKind::Bool, _) if name != "weight" => value.is_true(),
            (ValueKind::Number, Some(0.0)) => false,
            (ValueKind::Number, Some(1.0)) => true,
            _ => return Err(format!("its {name} is {value}, and 0 or 1 are honoured")),
        };
        if found.is_some_and(|other| other != says) {
            return Err("its fields train and weight contradict each other".to_owned());
        }
        found = Some(says);
    }
    Ok(found)
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

fn text(row: &Value, name: &str) -> Result<String, String> {
    let value = field(row, name);
    match value.as_str() {
        Some(text) if has_marks(text) => Err(marked(name)),
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("its `{name}` is {}, and no text", kind_of(&value))),
    }
}

fn marked(name: &str) -> String {
    format!("its `{name}` has U+FDD0 or U+FDD1, which are no characters: take them out")
}

fn field(row: &Value, name: &str) -> Value {
    row.get_attr(name).unwrap_or_default()
}

fn is_nothing(value: &Value) -> bool {
    value.is_none() || value.is_undefined()
}

fn kind_of(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "missing",
        ValueKind::None => "null",
        ValueKind::Bool => "a boolean",
        ValueKind::Number => "a number",
        ValueKind::String => "a text",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        _ => "an object",
    }
}
