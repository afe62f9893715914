//! Reading of an object's keys, of which none may be left.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::UnsupportedKey;

/// The keys of an object, which all have to be read.
pub(crate) struct Keys<'a> {
    pub(super) of: &'a Map<String, Value>,
    read: RefCell<BTreeSet<&'static str>>,
    /// Prefix of the keys in messages.
    path: &'static str,
}

pub(crate) type Read<T> = Result<T, UnsupportedKey>;

impl<'a> Keys<'a> {
    pub(crate) fn new(of: &'a Map<String, Value>, path: &'static str) -> Self {
        Self { of, read: RefCell::default(), path }
    }

    /// Returns a value; `None`: it is absent or null.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.of.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn refused(&self, key: &str, value: &Value, reason: impl Into<String>) -> UnsupportedKey {
        UnsupportedKey::new(&format!("{}{key}", self.path), value, reason)
    }

    pub(crate) fn parsed<T>(
        &self,
        key: &'static str,
        wanted: &str,
        parse: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Read<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let parsed = parse(value).ok_or_else(|| self.refused(key, value, format!("it must be {wanted}")))?;
        Ok(Some(parsed))
    }

    pub(crate) fn count(&self, key: &'static str) -> Read<Option<u32>> {
        self.parsed(key, "a whole number below 2^32", |value| value.as_u64()?.try_into().ok())
    }

    pub(crate) fn number(&self, key: &'static str) -> Read<Option<f64>> {
        self.parsed(key, "a number", Value::as_f64)
    }

    pub(crate) fn flag(&self, key: &'static str) -> Read<Option<bool>> {
        self.parsed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &'static str) -> Read<Option<&'a str>> {
        self.parsed(key, "text", Value::as_str)
    }

    pub(crate) fn numbers(&self, key: &'static str) -> Read<Option<Vec<f64>>> {
        let numbers = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect();
        self.parsed(key, "a list of numbers", numbers)
    }

    pub(crate) fn needed<T>(&self, key: &'static str, value: Option<T>) -> Read<T> {
        value.ok_or_else(|| self.refused(key, &Value::Null, "it is missing"))
    }

    /// Refuses a value other than the only one supported.
    pub(crate) fn expect(
        &self,
        key: &'static str,
        is_supported: impl Fn(&Value) -> bool,
        reason: &str,
    ) -> Read<()> {
        match self.get(key) {
            Some(value) if !is_supported(value) => Err(self.refused(key, value, reason)),
            _ => Ok(()),
        }
    }

    /// Refuses the first key that nobody has read.
    pub(crate) fn finish(&self, known: &[&str]) -> Read<()> {
        let read = self.read.borrow();
        let is_left = |key: &&String| !read.contains(key.as_str()) && !known.contains(&key.as_str());
        match self.of.keys().find(is_left) {
            Some(key) => {
                let reason = "this key is not known for this model_type: remove it if it changes nothing, else the model cannot be trained here";
                Err(self.refused(key, &self.of[key], reason))
            }
            None => Ok(()),
        }
    }
}
