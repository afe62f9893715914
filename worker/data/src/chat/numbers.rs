//! Numbers of rows as Python reads and shows them.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr, ValueKind};
use serde::de::IgnoredAny;

/// Begins a text that stands for a number. Unicode guarantees that it is no character.
const MARK: &str = "\u{fdd2}";
/// Numbers of Python's `json`, and how Python shows them.
const NAMED: [(&str, &str); 3] = [("-Infinity", "-inf"), ("Infinity", "inf"), ("NaN", "nan")];
/// Most digits of an integer, as in Python (`sys.set_int_max_str_digits`).
const DIGITS_MAX: usize = 4300;

/// A number that the engine would keep or show otherwise, as Python's `str` shows it. It has no arithmetic.
#[derive(Debug)]
struct Exact(String);

impl Object for Exact {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses JSON (RFC 8259, and `NaN`, `Infinity` and `-Infinity`) with numbers as Python's `json` reads them.
///
/// # Errors
/// It is no JSON, or has a number of too many digits.
pub(crate) fn parse(json: &[u8]) -> Result<Value, String> {
    let Some(marked) = marked(json)? else {
        return serde_json::from_slice(json).map_err(|error| error.to_string());
    };
    let has_mark = |text: &str| json.windows(text.len()).any(|at| at.eq_ignore_ascii_case(text.as_bytes()));
    if has_mark(MARK) || has_mark("\\ufdd2") {
        return Err("it has U+FDD2, which is no character: take it out".to_owned());
    }
    restored(serde_json::from_slice(&marked).map_err(|error| error.to_string())?)
}

/// Returns a double as a value that is shown as Python shows it.
pub(crate) fn of_float(number: f64) -> Value {
    let (value, shown) = (Value::from(number), repr(number));
    if value.to_string() == shown { value } else { Value::from_object(Exact(shown)) }
}

/// Returns a number as Python's `str` shows it; `None`: it is no number.
pub(super) fn shown(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Number if value.is_integer() => Some(value.to_string()),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(repr),
        _ => value.downcast_object_ref().map(|Exact(shown)| shown.clone()),
    }
}

/// Returns a number as Python's `json.dumps` writes it; `None`: it is no number.
pub(crate) fn written(value: &Value) -> Option<String> {
    let shown = shown(value)?;
    let named = NAMED.iter().find(|(_, name)| *name == shown);
    Some(named.map_or(shown, |(written, _)| (*written).to_owned()))
}

/// Whether a number is an integer; `None`: it is no number.
pub(super) fn is_integer(value: &Value) -> Option<bool> {
    shown(value).map(|shown| shown.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()))
}

/// Python's `repr`: the shortest digits that give the number again, with an exponent below 1e-4 and from 1e16 on.
fn repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let shown = format!("{number:e}");
    let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// Returns the JSON with marked texts in place of numbers that the parser would change; `None`: it has none.
fn marked(json: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let (mut out, mut at, mut is_quoted, mut found) = (Vec::new(), 0, false, false);
    while let Some(&byte) = json.get(at) {
        let rest = &json[at..];
        let named = NAMED.iter().find(|(name, _)| !is_quoted && rest.starts_with(name.as_bytes()));
        let (length, text) = match named {
            Some((name, shown)) => (name.len(), Some(format!("\"{MARK}{shown}\""))),
            None if is_quoted => (0, None),
            None => number(rest)?,
        };
        if let Some(text) = text {
            out.extend_from_slice(text.as_bytes());
            (at, found) = (at + length, true);
            continue;
        }
        // A whole number, or one byte; of a text, an escape or all before it.
        let length = match is_quoted {
            true => match memchr::memchr2(b'"', b'\\', rest) {
                Some(0) => 1 + usize::from(byte == b'\\'),
                Some(plain) => plain,
                None => rest.len(),
            },
            false => length.max(1),
        };
        let end = (at + length).min(json.len());
        out.extend_from_slice(&json[at..end]);
        is_quoted ^= byte == b'"';
        at = end;
    }
    Ok(found.then_some(out))
}

/// Returns the length of a number at the start, and the text in its place if the parser would change it.
fn number(rest: &[u8]) -> Result<(usize, Option<String>), String> {
    if !matches!(rest[0], b'0'..=b'9' | b'-') {
        return Ok((0, None));
    }
    let is_of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = rest.iter().take_while(is_of_number).count();
    let Ok(text) = str::from_utf8(&rest[..length]) else { return Ok((length, None)) };
    if text == "-0" {
        return Ok((length, Some("0".to_owned())));
    }
    if text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok() {
        return Ok((length, None));
    }
    if !is_number(text) {
        return Ok((length, None));
    }
    if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        let own = text.parse().map(repr).unwrap_or_default();
        let parsed = serde_json::from_str::<f64>(text).map(|number| Value::from(number).to_string());
        let is_same = parsed.is_ok_and(|parsed| parsed == own);
        return Ok((length, (!is_same).then(|| format!("\"{MARK}{own}\""))));
    }
    match text.trim_start_matches('-').len() {
        digits if digits > DIGITS_MAX => Err(format!(
            "it has an integer of {digits} digits, and {DIGITS_MAX} at most are read, as in Python"
        )),
        _ => Ok((length, Some(format!("\"{MARK}{text}\"")))),
    }
}

/// Whether a text is a number of JSON, whatever its size.
fn is_number(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Puts numbers in place of marked texts.
fn restored(value: Value) -> Result<Value, String> {
    let told = |error: minijinja::Error| error.to_string();
    match value.kind() {
        ValueKind::String => Ok(match value.as_str().and_then(|text| text.strip_prefix(MARK)) {
            Some(shown) if shown.contains(['.', 'e']) => shown.parse().map(of_float).unwrap_or(value),
            Some(shown) => Value::from_object(Exact(shown.to_owned())),
            None => value,
        }),
        ValueKind::Seq => value.try_iter().map_err(told)?.map(restored).collect(),
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter().map_err(told)? {
                if key.as_str().is_some_and(|name| name.starts_with(MARK)) {
                    return Err("a key is a number, and no text".to_owned());
                }
                let own = restored(value.get_item(&key).map_err(told)?)?;
                pairs.push((key, own));
            }
            Ok(Value::from_pairs(pairs))
        }
        _ => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By Python: `str(json.loads(number))` and `json.dumps(json.loads(number))`.
    #[test]
    fn numbers_are_shown_as_python_shows_them() {
        for (json, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("12", "12"),
            ("1.0", "1.0"),
            ("1e2", "100.0"),
            ("1e-4", "0.0001"),
            ("0.00001", "1e-05"),
            ("1E-5", "1e-05"),
            ("9999999999999998.0", "9999999999999998.0"),
            ("1e16", "1e+16"),
            ("123456789012345678.0", "1.2345678901234568e+17"),
            ("2.2250738585072011e-308", "2.225073858507201e-308"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("8.41e21", "8.41e+21"),
            ("5e-324", "5e-324"),
            ("1e-400", "0.0"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "18446744073709551616"),
            ("-9223372036854775809", "-9223372036854775809"),
            (
                "123456789012345678901234567890123456789012345",
                "123456789012345678901234567890123456789012345",
            ),
            ("1e400", "inf"),
            ("-1e400", "-inf"),
            ("NaN", "nan"),
            ("-Infinity", "-inf"),
        ] {
            let row =
                parse(format!("{{\"NaN 1e400\":[1,{json}],\"a\":\"\\\"{json} NaN\"}}").as_bytes()).unwrap();
            let list = row.get_attr("NaN 1e400").unwrap();
            let value = list.get_item_by_index(1).unwrap();
            assert_eq!(
                (value.to_string(), shown(&value).unwrap()),
                (expected.to_owned(), expected.to_owned())
            );
            assert_eq!(row.get_attr("a").unwrap().as_str(), Some(format!("\"{json} NaN").as_str()));
            let dumped = match expected {
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                "nan" => "NaN",
                other => other,
            };
            assert_eq!(written(&value).unwrap(), dumped);
        }
    }

    #[test]
    fn what_is_no_number_stays_refused() {
        let (long, mark) = (format!("[{}]", "1".repeat(4301)), format!("[NaN,\"{MARK}\"]"));
        for json in [
            "[nan]",
            "[NaN",
            "[NaNa]",
            "[+Infinity]",
            "{NaN:1}",
            "{1e400:1}",
            "NaN\"",
            "[01e999]",
            "[1e999e9]",
            "[1.e999]",
            "[--1e999]",
            "[00]",
            "[-]",
            "[1e400, 01]",
            "[NaN,\"\\uFDD2\"]",
            &long,
            &mark,
        ] {
            assert!(parse(json.as_bytes()).is_err(), "{json}");
        }
        assert!(parse(&[b"[".as_slice(), &[b'1'; 4300], b"]"].concat()).is_ok());
        assert!(parse(b"[\"\\ud83d\\ude42 \\\\\", -1.5]").is_ok());
    }
}
