//! Arguments of tool calls that are texts of JSON, as OpenAI writes them. Templates of models take objects, and write JSON of texts again.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::message::{CALLS, Message, field};
use super::numbers;
use super::spans::Chatted;
use crate::notes::{Note, Notes};
use crate::repeated::repeated_key;

const FUNCTION: &str = "function";
const ARGUMENTS: &str = "arguments";

/// Returns the messages with objects in place of such texts, where the template writes these in quotes, or takes none. Notes their number, and that of texts that are
/// no objects.
pub(super) fn parsed(chatted: &Chatted<'_>, notes: &mut Notes) -> Option<Vec<Message>> {
    let mut texts = Vec::new();
    let messages = with_arguments(chatted.messages, &mut |text: &str| {
        texts.push(text.to_owned());
        object(text)
    });
    let is_quoted = |text: &str| {
        let quoted = |own: &String| serde_json::to_string(own).is_ok_and(|quoted| text.contains(&quoted));
        texts.iter().any(quoted)
    };
    let is_taken = |messages: &[Message]| chatted.rendered(messages, false);
    if texts.is_empty()
        || is_taken(chatted.messages).is_ok_and(|rendered| !is_quoted(&rendered.text))
        || is_taken(&messages).is_err()
    {
        return None;
    }
    let objects = texts.iter().filter(|text| object(text).is_some()).count() as u64;
    notes.note(Note::ParsedArguments, objects, String::new);
    notes.note(Note::TextArguments, texts.len() as u64 - objects, String::new);
    Some(messages)
}

/// Returns the object that a text is in JSON; `None`: it is none, or would lose a value.
fn object(text: &str) -> Option<Value> {
    let value = numbers::parse(text.as_bytes()).ok()?;
    (value.kind() == ValueKind::Map && repeated_key(text.as_bytes()).is_none()).then_some(value)
}

/// Returns messages with other arguments in place of texts. `None` keeps a text.
fn with_arguments(messages: &[Message], parse: &mut impl FnMut(&str) -> Option<Value>) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let fields = messages.iter_mut().flat_map(|message| &mut message.fields);
    for (_, calls) in fields.filter(|(name, _)| CALLS.contains(&name.as_str())) {
        *calls = match calls.kind() {
            ValueKind::Seq => {
                let all: Vec<Value> = calls.try_iter().map(Iterator::collect).unwrap_or_default();
                all.iter().map(|call| with_argument(call, parse)).collect()
            }
            _ => with_argument(calls, parse),
        };
    }
    messages
}

fn with_argument(call: &Value, parse: &mut impl FnMut(&str) -> Option<Value>) -> Value {
    if call.kind() != ValueKind::Map {
        return call.clone();
    }
    let function = field(call, FUNCTION);
    if function.kind() == ValueKind::Map {
        return replaced(call, FUNCTION, &with_argument(&function, parse));
    }
    let arguments = field(call, ARGUMENTS);
    let parsed = arguments.as_str().and_then(parse);
    parsed.map_or_else(|| call.clone(), |parsed| replaced(call, ARGUMENTS, &parsed))
}

/// Returns an object with another value of a key.
fn replaced(object: &Value, name: &str, value: &Value) -> Value {
    let keys: Vec<Value> = object.try_iter().map(Iterator::collect).unwrap_or_default();
    let pair = |key: &Value| {
        let own = if key.as_str() == Some(name) { Ok(value.clone()) } else { object.get_item(key) };
        (key.as_str().unwrap_or_default().to_owned(), own.unwrap_or_default())
    };
    Value::from_pairs(keys.iter().map(pair))
}
