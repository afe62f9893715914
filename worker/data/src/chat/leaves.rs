//! Numbers and booleans in the arguments of tool calls, which have no place for a mark.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::arguments::{ARGUMENTS, replaced, with_functions};
use super::message::{Message, field};

/// Places in a list, and among the keys of an object, that are told apart: templates may print the first ones alone.
const PLACES_MAX: usize = 8;

/// A number or boolean in the arguments of a call. A null is no value, and texts have marks.
pub(super) struct Leaf {
    /// Index of the message.
    pub(super) at: usize,
    /// Index of the call among those of all messages.
    call: usize,
    /// Keys and indices down to it, each with its place among its siblings.
    path: Vec<(Value, usize)>,
    value: Value,
}

impl Leaf {
    /// Describes all that a template usually distinguishes: names, places, kind and truth.
    pub(super) fn signature(&self) -> String {
        let mut text = String::new();
        for (key, place) in &self.path {
            let name = key.as_str().unwrap_or_default();
            // Writes to a string cannot fail.
            let _ = write!(text, "{name}#{}/", place.min(&PLACES_MAX));
        }
        let _ = write!(text, "{} {} {}", self.value.kind(), self.value.is_integer(), self.value.is_true());
        text
    }

    /// Returns another value of its kind: the other boolean, the next whole number, or half of the way there.
    pub(super) fn other(&self) -> Value {
        if self.value.kind() == ValueKind::Bool {
            return Value::from(!self.value.is_true());
        }
        match (self.value.as_i64(), f64::try_from(self.value.clone())) {
            (Some(number), _) if self.value.is_integer() => {
                Value::from(if number == -1 { 1 } else { number.wrapping_add(1) })
            }
            (_, Ok(number)) if number.fract() == 0.0 => Value::from(number / 2.0 + 1.5),
            (_, Ok(number)) => Value::from(f64::midpoint(number, number.trunc())),
            (_, Err(_)) => Value::from(1),
        }
    }
}

/// Returns the numbers and booleans in the arguments of all calls.
pub(super) fn leaves(messages: &[Message]) -> Vec<Leaf> {
    let (mut found, mut call) = (Vec::new(), 0);
    with_functions(messages, &mut |(at, _), function| {
        let own = field(function, ARGUMENTS);
        if own.kind() == ValueKind::Map {
            gather(&own, &mut Vec::new(), &mut |path, value| found.push(Leaf { at, call, path, value }));
        }
        call += 1;
        None
    });
    found
}

/// Walks through a value, whose depth the parser has limited.
fn gather(value: &Value, path: &mut Vec<(Value, usize)>, found: &mut impl FnMut(Vec<(Value, usize)>, Value)) {
    match value.kind() {
        ValueKind::Map | ValueKind::Seq => {
            for (place, (key, own)) in children(value).into_iter().enumerate() {
                path.push((key, place));
                gather(&own, path, found);
                path.pop();
            }
        }
        // A number that the engine would change is plain.
        ValueKind::Bool | ValueKind::Number | ValueKind::Plain => found(path.clone(), value.clone()),
        _ => {}
    }
}

/// Returns the keys of an object, or indices of a list, with their values.
fn children(value: &Value) -> Vec<(Value, Value)> {
    let items = value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Map => items.map(|key| (key.clone(), value.get_item(&key).unwrap_or_default())).collect(),
        _ => items.enumerate().map(|(at, own)| (Value::from(at), own)).collect(),
    }
}

/// Returns the messages with another value in the place of a leaf; `None`: without it.
pub(super) fn with_leaf(messages: &[Message], leaf: &Leaf, value: Option<&Value>) -> Vec<Message> {
    let mut call = 0;
    with_functions(messages, &mut |_, function| {
        let is_its = call == leaf.call;
        call += 1;
        is_its
            .then(|| replaced(function, ARGUMENTS, &changed(&field(function, ARGUMENTS), &leaf.path, value)))
    })
}

fn changed(value: &Value, path: &[(Value, usize)], new: Option<&Value>) -> Value {
    let Some(((_, place), rest)) = path.split_first() else {
        return new.cloned().unwrap_or_default();
    };
    let own = children(value).into_iter().enumerate().filter_map(|(at, (key, own))| match at == *place {
        true if rest.is_empty() => new.map(|new| (key, new.clone())),
        true => Some((key, changed(&own, rest, new))),
        false => Some((key, own)),
    });
    match value.kind() {
        ValueKind::Map => {
            let name = |key: Value| key.as_str().unwrap_or_default().to_owned();
            Value::from_pairs(own.map(|(key, own)| (name(key), own)).collect::<Vec<_>>())
        }
        _ => own.map(|(_, own)| own).collect(),
    }
}
