//! Values of a row, or the reason why they are not of the expected kind.

use serde_json::Value;

use crate::records::whole_rows::Row;

/// Most answers of a question: ten times as many as usual tasks have.
const ANSWERS_MAX: usize = 64;

pub(super) fn text<'a>(row: &'a Row, name: &str) -> Result<&'a str, String> {
    match row.get(name) {
        Some(Value::String(text)) => Ok(text),
        other => Err(format!("its `{name}` is {}, and no text", kind_of(other))),
    }
}

/// Returns a list of texts: two at least.
pub(super) fn texts<'a>(row: &'a Row, name: &str) -> Result<Vec<&'a str>, String> {
    let Some(Value::Array(all)) = row.get(name) else {
        let found = kind_of(row.get(name));
        return Err(format!("its `{name}` is {found}, and no list: write the file as JSON lines or Parquet"));
    };
    if !(2..=ANSWERS_MAX).contains(&all.len()) {
        return Err(format!("its `{name}` has {} entries, and 2 to {ANSWERS_MAX} are answers", all.len()));
    }
    let text = |(at, value): (usize, &'a Value)| {
        value.as_str().ok_or_else(|| {
            format!("entry {} of its `{name}` is {}, and no text", at + 1, kind_of(Some(value)))
        })
    };
    all.iter().enumerate().map(text).collect()
}

/// Returns an index below `count`, written as a number or as a text; `first` is that of the first.
pub(super) fn index(row: &Row, name: &str, first: u64, count: usize) -> Result<usize, String> {
    let value = row.get(name);
    let number = match value {
        Some(Value::Number(number)) => number
            .as_u64()
            .or_else(|| number.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64)),
        Some(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    };
    let last = first + count as u64 - 1;
    match number.filter(|number| (first..=last).contains(number)) {
        Some(number) => Ok((number - first) as usize),
        None => Err(format!(
            "its `{name}` is {}, and must be {first} to {last}{}",
            shown(value),
            unlabelled(value)
        )),
    }
}

/// Returns the remedy for a row whose answer is left out.
pub(super) fn unlabelled(value: Option<&Value>) -> &'static str {
    let is_empty = match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.trim().is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(-1),
        Some(_) => false,
    };
    if is_empty {
        ": the answers of some test splits are not published: take the validation split"
    } else {
        ""
    }
}

/// Shows a short value.
pub(super) fn shown(value: Option<&Value>) -> String {
    match value {
        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
        Some(Value::String(text)) if text.chars().count() <= 20 => format!("{text:?}"),
        other => kind_of(other).to_owned(),
    }
}

pub(super) fn kind_of(value: Option<&Value>) -> &'static str {
    match value {
        None => "missing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a text",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "an object",
    }
}
