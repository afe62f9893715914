//! Booleans and zeros in the arguments of tool calls, which have no place for a mark.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::arguments::{ARGUMENTS, replaced, with_functions};
use super::message::{Message, field};

/// Hexadecimal digits of a signature.
const HASH_DIGITS: usize = 16;
/// Places in a list, and among the keys of an object, that are told apart: templates may print the first ones alone.
const PLACES_MAX: usize = 8;

/// A boolean or zero in the arguments of a call. A null is no value; texts and other numbers have marks.
pub(super) struct Leaf {
    /// Index of the message.
    pub(super) at: usize,
    /// Index of the call among those of all messages, and among those of its own.
    call: [usize; 2],
    /// Keys and indices down to it, each with its place among its siblings.
    path: Vec<(Value, usize)>,
    value: Value,
}

impl Leaf {
    /// Returns a hash of all that a template usually distinguishes: the call's place, names, places, kind and truth.
    pub(super) fn signature(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |name: &str, place: usize| {
            hasher.update(name.as_bytes()).update(&place.min(PLACES_MAX).to_le_bytes());
        };
        add("", self.call[1]);
        self.path.iter().for_each(|(key, place)| add(key.as_str().unwrap_or_default(), *place));
        add(&self.value.kind().to_string(), usize::from(self.value.is_true()));
        hasher.finalize().to_hex().as_str()[..HASH_DIGITS].to_owned()
    }

    /// Returns another value of its kind: the other boolean, or one.
    pub(super) fn other(&self) -> Value {
        match self.value.kind() {
            ValueKind::Bool => Value::from(!self.value.is_true()),
            _ => Value::from(1),
        }
    }
}

/// Returns the booleans and zeros in the arguments of all calls.
pub(super) fn leaves(messages: &[Message]) -> Vec<Leaf> {
    let (mut found, mut call, mut before) = (Vec::new(), [0, 0], None);
    with_functions(messages, &mut |(at, _), function| {
        if before.replace(at) != Some(at) {
            call[1] = 0;
        }
        let own = field(function, ARGUMENTS);
        if own.kind() == ValueKind::Map {
            gather(&own, &mut Vec::new(), &mut |path, value| found.push(Leaf { at, call, path, value }));
        }
        call = call.map(|place| place + 1);
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
        ValueKind::Bool => found(path.clone(), value.clone()),
        ValueKind::Number if !value.is_true() => found(path.clone(), value.clone()),
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
        let is_its = call == leaf.call[0];
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
