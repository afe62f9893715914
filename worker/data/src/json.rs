//! JSON as Python writes it.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

/// Whether nesting is the reason; the parser has no error kind for it.
pub(crate) fn is_too_deep(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

/// Whether a value is more than null, an empty text, list or object.
pub(crate) fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Parses JSON (RFC 8259), with Python's `NaN`, `Infinity` and `-Infinity` and numbers beyond doubles (`1e999`) as null: no text is one.
pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(line).or_else(|error| match without_other_numbers(line) {
        Some(plain) => {
            serde_json::from_slice(&plain).map_err(|other| if is_too_deep(&other) { other } else { error })
        }
        None => Err(error),
    })
}

/// Returns the line with null in place of such numbers; `None`: it has none.
fn without_other_numbers(line: &[u8]) -> Option<Vec<u8>> {
    const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut plain, mut at, mut is_quoted, mut found) = (Vec::with_capacity(line.len()), 0, false, false);
    while let Some(&byte) = line.get(at) {
        let number = NUMBERS.iter().find(|number| !is_quoted && line[at..].starts_with(number));
        let digits = if is_quoted { 0 } else { number_at(&line[at..]) };
        if let Some(number) = number {
            plain.extend_from_slice(b"null");
            (at, found) = (at + number.len(), true);
            continue;
        }
        if digits > 0 {
            let number = &line[at..at + digits];
            let is_beyond = is_beyond_a_double(number);
            plain.extend_from_slice(if is_beyond { b"null" } else { number });
            (at, found) = (at + digits, found || is_beyond);
            continue;
        }
        plain.push(byte);
        at += 1;
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => {
                plain.extend(line.get(at));
                at += 1;
            }
            _ => {}
        }
    }
    found.then_some(plain)
}

/// Returns the length of a number at the start.
fn number_at(rest: &[u8]) -> usize {
    let is_of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    match rest.first() {
        Some(b'0'..=b'9' | b'-') => rest.iter().take_while(is_of_number).count(),
        _ => 0,
    }
}

/// Whether it is a JSON number, refused only for its size.
fn is_beyond_a_double(number: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(number).is_ok() && serde_json::from_slice::<f64>(number).is_err()
}
