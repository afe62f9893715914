//! Messages as templates take them.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::numbers;
use super::template::has_marks;

/// Fields of a message that say whether it is trained on, and are no part of it for templates.
const TRAINED: [&str; 4] = ["train", "training", "loss", "weight"];
/// Names under which a message has its reasoning: transformers passes it under the first two, whichever it has.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", THINKING, "reasoning"];
const THINKING: &str = "thinking";
/// Fields with calls of tools, today's and the earlier one.
pub(super) const CALLS: [&str; 2] = ["tool_calls", "function_call"];
/// The role whose messages are trained on.
pub(super) const ASSISTANT: &str = "assistant";
/// The role of a system text.
pub(super) const SYSTEM: &str = "system";
const ROLES: [&str; 5] = [SYSTEM, "developer", "user", ASSISTANT, "tool"];
/// Roles of ShareGPT.
const SHARE_GPT_ROLES: [(&str, &str); 4] =
    [("human", "user"), ("gpt", ASSISTANT), ("chatgpt", ASSISTANT), ("model", ASSISTANT)];

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(super) role: String,
    pub(super) content: String,
    /// All fields for the template, in order.
    pub(super) fields: Vec<(String, Value)>,
    /// Names under which they have its reasoning again.
    copies: Vec<&'static str>,
    /// Whether it says so itself.
    pub(super) is_trained: Option<bool>,
}

impl Message {
    /// Whether it is an answer of the assistant that counts.
    pub(super) fn is_scored(&self) -> bool {
        self.role == ASSISTANT && self.is_trained != Some(false)
    }

    pub(super) fn plain(role: &str, content: String) -> Result<Self, String> {
        let pairs = [("role", Value::from(role)), ("content", Value::from(content))];
        Self::read(&Value::from_pairs(pairs))
    }

    pub(super) fn read(entry: &Value) -> Result<Self, String> {
        if entry.kind() != ValueKind::Map {
            return Err(format!("it is {}, and no object with a role and its content", kind_of(entry)));
        }
        let is_share_gpt = is_nothing(&field(entry, "role")) && !is_nothing(&field(entry, "from"));
        let [role_name, content_name] = if is_share_gpt { ["from", "value"] } else { ["role", "content"] };
        let content = field(entry, content_name);
        if is_nothing(&content) && !is_nothing(&field(entry, "tool_calls")) {
            // Templates show an absent text in unlike ways.
            return Err(format!("it has `tool_calls` and no `{content_name}`: write an empty text, \"\""));
        }
        if content.kind() == ValueKind::Seq {
            return Err(format!(
                "its `{content_name}` is a list, and no text: join the texts of its parts; parts of other types are not read"
            ));
        }
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
                "content" if !is_filled(&value) => {}
                "content" => return Err("it has `value` and `content`: leave one of them out".to_owned()),
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
        let copies = with_reasoning(&mut fields);
        Ok(Self { role, content, fields, copies, is_trained })
    }

    /// Returns it with another content.
    pub(super) fn with_content(&self, content: String) -> Self {
        let mut other = self.clone();
        if let Some((_, own)) = other.fields.iter_mut().find(|(name, _)| name == "content") {
            *own = Value::from(content.as_str());
        }
        Self { content, ..other }
    }

    /// Returns the name of its calls of tools; `None`: it has none.
    pub(super) fn calls(&self) -> Option<&str> {
        let filled =
            self.fields.iter().filter(|(name, value)| CALLS.contains(&name.as_str()) && is_filled(value));
        filled.map(|(name, _)| name.as_str()).next()
    }

    /// Returns its filled fields beside its role and content.
    pub(super) fn beside(&self) -> impl Iterator<Item = (&str, &Value)> {
        let is_own = |name: &str| name != "role" && name != "content" && !self.copies.contains(&name);
        let filled = self.fields.iter().filter(move |(name, value)| is_own(name) && is_filled(value));
        filled.map(|(name, value)| (name.as_str(), value))
    }

    /// Returns it for a template.
    pub(super) fn value(&self) -> Value {
        Value::from_pairs(self.fields.iter().map(|(name, value)| (name.as_str(), value.clone())))
    }
}

/// Passes reasoning under its standard name, and under `thinking`. Returns the names added.
fn with_reasoning(fields: &mut Vec<(String, Value)>) -> Vec<&'static str> {
    let found = REASONING.iter().find_map(|name| fields.iter().find(|(own, _)| own == name));
    let Some((_, reasoning)) = found.cloned() else { return Vec::new() };
    let mut added = Vec::new();
    if !fields.iter().any(|(name, _)| name == THINKING) {
        fields.insert(0, (THINKING.to_owned(), reasoning.clone()));
        added.push(THINKING);
    }
    match fields.iter_mut().find(|(name, _)| name == REASONING[0]) {
        Some((_, own)) => *own = reasoning,
        None => {
            fields.push((REASONING[0].to_owned(), reasoning));
            added.push(REASONING[0]);
        }
    }
    added
}

/// Returns whether a message says that it is trained on: `train`, `training` or `loss` (of ms-swift) of a boolean, or any of them of 0 or 1.
fn trained(entry: &Value) -> Result<Option<bool>, String> {
    let mut found: Option<(&str, bool)> = None;
    for name in TRAINED {
        let value = field(entry, name);
        let says = match (value.kind(), f64::try_from(value.clone()).ok()) {
            _ if is_nothing(&value) => continue,
            (ValueKind::Bool, _) if name != "weight" => value.is_true(),
            (ValueKind::Number, Some(0.0)) => false,
            (ValueKind::Number, Some(1.0)) => true,
            (kind, _) => {
                let shown = match kind {
                    ValueKind::Number => value.to_string(),
                    ValueKind::Bool => value.is_true().to_string(),
                    ValueKind::String => format!("the text {:?}", value.as_str().unwrap_or_default()),
                    _ => kind_of(&value).to_owned(),
                };
                let wanted = if name == "weight" { "0 or 1" } else { "false or true, or 0 or 1," };
                return Err(format!("its {name} is {shown}: {wanted} is wanted, without quotes"));
            }
        };
        match found {
            Some((other, before)) if before != says => {
                return Err(format!("its fields {other} and {name} contradict each other: leave one out"));
            }
            _ => found = Some((name, says)),
        }
    }
    Ok(found.map(|(_, says)| says))
}

pub(super) fn text(row: &Value, name: &str) -> Result<String, String> {
    let value = field(row, name);
    match value.as_str() {
        Some(text) if has_marks(text) => Err(marked(name)),
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("its `{name}` is {}, and no text", kind_of(&value))),
    }
}

pub(super) fn marked(name: &str) -> String {
    format!("its `{name}` has U+FDD0 or U+FDD1, which are no characters: take them out")
}

pub(crate) fn field(row: &Value, name: &str) -> Value {
    row.get_attr(name).unwrap_or_default()
}

pub(super) fn is_nothing(value: &Value) -> bool {
    value.is_none() || value.is_undefined()
}

/// Whether a value is more than null, an empty text, list or object.
pub(crate) fn is_filled(value: &Value) -> bool {
    !is_nothing(value) && value.len() != Some(0)
}

pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "missing",
        ValueKind::None => "null",
        ValueKind::Bool => "a boolean",
        ValueKind::Number => "a number",
        ValueKind::String => "a text",
        ValueKind::Seq | ValueKind::Iterable => "a list",
        _ if numbers::shown(value).is_some() => "a number",
        _ => "an object",
    }
}
