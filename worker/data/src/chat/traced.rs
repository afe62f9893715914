//! Which keys of messages a template asks for, and which it reads.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::Value;
use minijinja::value::{Enumerator, Object};

use super::message::Message;

/// Most names of keys that are known to be read; others are tried in each conversation.
const READ_MAX: usize = 1 << 14;

/// The keys that templates ask for, each with the index of its message.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<Mutex<BTreeSet<(usize, String)>>>);

impl Asked {
    /// Returns a message for a template.
    pub(super) fn value(&self, at: usize, message: &Message) -> Value {
        match message.beside().next() {
            None => message.value(),
            Some(_) => Value::from_object(Traced { at, message: message.value(), asked: self.clone() }),
        }
    }

    /// Whether a template asked for a key of a message.
    pub(super) fn has(&self, at: usize, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&(at, name.to_owned()))
    }
}

/// Keys of messages of a role that some text of a template depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadKeys(Arc<Mutex<BTreeSet<[String; 2]>>>);

impl ReadKeys {
    pub(super) fn has(&self, role: &str, name: &str) -> bool {
        let key = [role, name].map(str::to_owned);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }

    pub(super) fn insert(&self, role: &str, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < READ_MAX {
            names.insert([role, name].map(str::to_owned));
        }
    }
}

/// Knows which of its keys are asked for.
#[derive(Debug)]
struct Traced {
    at: usize,
    message: Value,
    asked: Asked,
}

impl Object for Traced {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let value = self.message.get_item(key).ok().filter(|value| !value.is_undefined())?;
        if let Some(name) = key.as_str().filter(|name| !["role", "content"].contains(name)) {
            let mut asked = self.asked.0.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert((self.at, name.to_owned()));
        }
        Some(value)
    }

    /// Whoever counts or prints the keys asks for all.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let keys: Vec<Value> = self.message.try_iter().map(Iterator::collect).unwrap_or_default();
        keys.iter().for_each(|key| drop(self.get_value(key)));
        Enumerator::Values(keys)
    }
}
