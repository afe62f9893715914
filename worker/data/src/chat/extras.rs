//! What a row gives its template beside the messages.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::message::{field, is_nothing, kind_of, marked};
use super::numbers;
use super::template::has_marks;
use crate::repeated::repeated_key;

const TOOLS: &str = "tools";
const VARIABLES: &str = "chat_template_kwargs";
/// Parameters of transformers' `apply_chat_template`, which are no variables.
const PARAMETERS: [&str; 16] = [
    "conversation",
    "messages",
    TOOLS,
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
];

/// Tools and variables of a template, as TRL passes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    tools: Option<Value>,
    variables: Vec<(String, Value)>,
    /// All of it in JSON; empty: there is nothing.
    written: String,
}

impl Extras {
    /// Their columns.
    pub(super) const COLUMNS: [&str; 2] = [TOOLS, VARIABLES];

    /// Reads the columns of a row.
    ///
    /// # Errors
    /// The cause.
    pub(super) fn read(row: &Value) -> Result<Self, String> {
        let (tools, variables) = (tools(field(row, TOOLS))?, variables(&field(row, VARIABLES))?);
        let mut written = String::new();
        let named = tools.iter().map(|tools| (TOOLS, tools));
        for (name, value) in named.chain(variables.iter().map(|(name, value)| (name.as_str(), value))) {
            let json = serde_json::to_string(value).unwrap_or_default();
            if has_marks(&json) {
                return Err(marked(name));
            }
            // Types matter: `1` is not `"1"`.
            written += &format!("{name:?} {:?} {json}\n", value.kind());
        }
        Ok(Self { tools, variables, written })
    }

    pub(super) fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
    }

    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, Value)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.clone()))
    }

    /// Returns the name of a column that has something.
    pub(super) fn first(&self) -> Option<&'static str> {
        let variables = (!self.variables.is_empty()).then_some(VARIABLES);
        self.tools.as_ref().map(|_| TOOLS).or(variables)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.written.len() as u64
    }

    /// Returns all of it as text.
    pub(super) fn written(&self) -> &str {
        &self.written
    }
}

/// Returns the list of tools, which may be written as JSON; `None`: there are none.
fn tools(value: Value) -> Result<Option<Value>, String> {
    let value = match value.as_str() {
        Some(text) if text.trim().is_empty() => return Ok(None),
        Some(text) => {
            let read = numbers::parse(text.as_bytes());
            let read = read.map_err(|reason| format!("its tools are a text that is no JSON: {reason}"))?;
            match repeated_key(text.as_bytes()) {
                Some(reason) => return Err(format!("in its tools, {reason}")),
                None => read,
            }
        }
        None => value,
    };
    if is_nothing(&value) || value.len() == Some(0) {
        return Ok(None);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(format!("its tools are {}, and no list of objects", kind_of(&value)));
    }
    for (at, tool) in value.try_iter().map_err(|error| error.to_string())?.enumerate() {
        if tool.kind() != ValueKind::Map {
            return Err(format!(
                "tool {} of its tools is {}, and no object with the JSON schema of a function",
                at + 1,
                kind_of(&tool)
            ));
        }
    }
    Ok(Some(value))
}

fn variables(value: &Value) -> Result<Vec<(String, Value)>, String> {
    if is_nothing(value) {
        return Ok(Vec::new());
    }
    if value.kind() != ValueKind::Map {
        return Err(format!("its {VARIABLES} are {}, and no object", kind_of(value)));
    }
    let mut all = Vec::new();
    for key in value.try_iter().map_err(|error| error.to_string())? {
        let Some(name) = key.as_str() else { continue };
        if PARAMETERS.contains(&name) {
            return Err(format!(
                "its {VARIABLES} have {name}, which is no variable of templates: leave it out"
            ));
        }
        all.push((name.to_owned(), value.get_item(&key).unwrap_or_default()));
    }
    Ok(all)
}
