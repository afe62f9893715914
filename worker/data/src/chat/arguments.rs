//! Arguments of tool calls that are texts of JSON, as OpenAI writes them. Templates of models take objects, and write JSON of texts again.

use std::collections::BTreeSet;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::message::{CALLS, Message, field, is_filled};
use super::numbers;
use super::spans::{Chatted, OTHERS};
use crate::notes::{Note, Notes};
use crate::repeated::repeated_key;

const FUNCTION: &str = "function";
const NAME: &str = "name";
pub(super) const ARGUMENTS: &str = "arguments";
/// Numbers in place of others, of eight digits.
const NUMBERS_FROM: u32 = 73_100_000;
/// Around the number of a call, or of a message.
pub(super) const MARK: char = OTHERS[0];

/// Returns the messages with objects in place of such texts where the template does not print these as they are. Notes their number, and that of texts that are no
/// objects.
pub(super) fn parsed(chatted: &Chatted<'_>, notes: &mut Notes) -> Option<Vec<Message>> {
    if !chatted.messages.iter().any(|message| message.calls().is_some()) {
        return None;
    }
    let mut texts = Vec::new();
    with_functions(chatted.messages, &mut |_, function| {
        texts.extend(text_of(function));
        None
    });
    if texts.is_empty() {
        return None;
    }
    let printed = |messages: &[Message]| chatted.rendered(messages, false).map(|rendered| rendered.text);
    let own = printed(chatted.messages).unwrap_or_default();
    let emptied = |_: Place<'_>, function: &Value| {
        text_of(function).map(|_| replaced(function, ARGUMENTS, &Value::from("")))
    };
    let without = printed(&with_functions(chatted.messages, &mut { emptied })).unwrap_or_default();
    let mut others: BTreeSet<&str> = texts.iter().map(|text| text.trim()).collect();
    others.retain(|text| count(&own, text) <= count(&without, text));
    let object = |text: &str| object(text).filter(|_| others.contains(text.trim()));
    let messages = with_functions(chatted.messages, &mut |_, function| {
        let parsed = text_of(function).and_then(|text| object(&text))?;
        Some(replaced(function, ARGUMENTS, &parsed))
    });
    if others.is_empty() || printed(&messages).is_err() {
        return None;
    }
    let others = texts.iter().filter(|text| others.contains(text.trim())).count() as u64;
    let objects = texts.iter().filter(|text| object(text).is_some()).count() as u64;
    notes.note(Note::ParsedArguments, objects, String::new);
    notes.note(Note::TextArguments, others - objects, String::new);
    Some(messages)
}

/// Returns the messages with empty arguments in their calls; `None`: none has any.
pub(super) fn without_arguments(messages: &[Message]) -> Option<Vec<Message>> {
    let mut has_any = false;
    let messages = with_functions(messages, &mut |_, function| {
        let own = field(function, ARGUMENTS);
        let empty =
            || if own.as_str().is_some() { Value::from("") } else { Value::from_pairs([("", ""); 0]) };
        is_filled(&own).then(|| {
            has_any = true;
            replaced(function, ARGUMENTS, &empty())
        })
    });
    has_any.then_some(messages)
}

/// A mark in the arguments of a call.
pub(super) struct ArgumentMark {
    /// Index of its message.
    pub(super) at: usize,
    /// The digits in the place of a number; `None`: a mark behind a text.
    digits: Option<String>,
}

impl ArgumentMark {
    /// Returns the messages' indices of those that a text does not have, of all in their order.
    pub(super) fn missing(all: &[Self], text: &str) -> Option<usize> {
        let found = marks(text);
        // Templates may group digits.
        let plain = text.replace([',', '_'], "");
        let is_there = |number: usize, mark: &Self| match &mark.digits {
            Some(digits) => plain.contains(digits.as_str()),
            None => found.contains(&number),
        };
        all.iter().enumerate().find(|(number, mark)| !is_there(*number, mark)).map(|(_, mark)| mark.at)
    }
}

/// Returns the messages with a mark behind each text in their calls' arguments, and other numbers in place of those that are not zero; and all marks.
pub(super) fn with_argument_marks(messages: &[Message]) -> (Vec<Message>, Vec<ArgumentMark>) {
    let mut places = Vec::new();
    let messages = with_functions(messages, &mut |(at, _), function| {
        let own = field(function, ARGUMENTS);
        let is_object = own.kind() == ValueKind::Map;
        is_object.then(|| replaced(function, ARGUMENTS, &marked(&own, at, &mut places)))
    });
    (messages, places)
}

/// Returns a value with marks, whose depth the parser has limited.
fn marked(value: &Value, at: usize, places: &mut Vec<ArgumentMark>) -> Value {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Map => {
            let pair = |key: Value| {
                let own = value.get_item(&key).unwrap_or_default();
                (key.as_str().unwrap_or_default().to_owned(), marked(&own, at, places))
            };
            Value::from_pairs(items().map(pair).collect::<Vec<_>>())
        }
        ValueKind::Seq => items().map(|own| marked(&own, at, places)).collect(),
        ValueKind::String => {
            places.push(ArgumentMark { at, digits: None });
            Value::from(format!("{value}{MARK}{}{MARK}", places.len() - 1))
        }
        ValueKind::Number | ValueKind::Plain if value.is_true() => {
            let whole = NUMBERS_FROM + places.len() as u32;
            let is_whole = numbers::is_integer(value) == Some(true);
            let own = if is_whole { Value::from(whole) } else { Value::from(f64::from(whole) + 0.5) };
            places.push(ArgumentMark { at, digits: Some(own.to_string()) });
            own
        }
        _ => value.clone(),
    }
}

/// Returns a function's arguments that are a text with something in it.
fn text_of(function: &Value) -> Option<String> {
    field(function, ARGUMENTS).as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

/// Counts a text within a longer one, but for those in quotes: JSON of `{}` is `"{}"`.
fn count(printed: &str, text: &str) -> usize {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    printed.matches(text).count().saturating_sub(printed.matches(&quoted).count())
}

/// Returns the object that a text is in JSON; `None`: it is none, or would lose a value.
fn object(text: &str) -> Option<Value> {
    let value = numbers::parse(text.as_bytes()).ok()?;
    (value.kind() == ValueKind::Map && repeated_key(text.as_bytes()).is_none()).then_some(value)
}

/// A call's message, by its index, and the field that the call is in.
pub(super) type Place<'a> = (usize, &'a str);

/// Returns messages whose calls have other names, each with a mark of its own, and the places of the calls in the marks' order.
pub(super) fn with_marks(messages: &[Message]) -> (Vec<Message>, Vec<(usize, String)>) {
    let mut places = Vec::new();
    let messages = with_functions(messages, &mut |(at, calls), function| {
        let name = field(function, NAME);
        let marked = format!("{}{MARK}{}{MARK}", name.as_str()?, places.len());
        places.push((at, calls.to_owned()));
        Some(replaced(function, NAME, &Value::from(marked)))
    });
    (messages, places)
}

/// Returns the numbers of the marks in a text, which JSON may have in ASCII.
pub(super) fn marks(text: &str) -> BTreeSet<usize> {
    let escaped = format!("\\u{:04x}", u32::from(MARK));
    text.split(MARK).flat_map(|part| part.split(&escaped)).filter_map(|part| part.parse().ok()).collect()
}

/// Returns messages with other functions in their calls. `None` keeps one.
pub(super) fn with_functions(
    messages: &[Message],
    change: &mut impl FnMut(Place<'_>, &Value) -> Option<Value>,
) -> Vec<Message> {
    let mut messages = messages.to_vec();
    for (at, message) in messages.iter_mut().enumerate() {
        for (name, calls) in message.fields.iter_mut().filter(|(name, _)| CALLS.contains(&name.as_str())) {
            let mut of_call =
                |call: &Value| with_function(call, &mut |function| change((at, name), function));
            *calls = match calls.kind() {
                ValueKind::Seq => {
                    let all: Vec<Value> = calls.try_iter().map(Iterator::collect).unwrap_or_default();
                    all.iter().map(of_call).collect()
                }
                _ => of_call(calls),
            };
        }
    }
    messages
}

fn with_function(call: &Value, change: &mut impl FnMut(&Value) -> Option<Value>) -> Value {
    if call.kind() != ValueKind::Map {
        return call.clone();
    }
    let function = field(call, FUNCTION);
    if function.kind() == ValueKind::Map {
        return change(&function).map_or_else(|| call.clone(), |own| replaced(call, FUNCTION, &own));
    }
    change(call).unwrap_or_else(|| call.clone())
}

/// Returns an object with another value of a key.
pub(super) fn replaced(object: &Value, name: &str, value: &Value) -> Value {
    let keys: Vec<Value> = object.try_iter().map(Iterator::collect).unwrap_or_default();
    let pair = |key: &Value| {
        let own = if key.as_str() == Some(name) { Ok(value.clone()) } else { object.get_item(key) };
        (key.as_str().unwrap_or_default().to_owned(), own.unwrap_or_default())
    };
    Value::from_pairs(keys.iter().map(pair))
}
