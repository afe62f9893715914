//! Methods and filters of texts, where Python's differ from the engine's.

use std::borrow::Cow;

use minijinja::value::{Kwargs, StringInput, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Filters that templates hardly use, and Python computes otherwise.
const REFUSED: [(&str, &str); 2] = [
    ("attr", "it never reads a key of a mapping in Jinja: write `m.name` or `m['name']`"),
    ("pprint", "it prints in Python's own form: write `tojson`"),
];
/// Most blanks of an indentation.
const INDENT_MAX: usize = 1 << 10;

/// Adds them to an environment.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("trim", |text: StringInput<'_>, chars: Option<Cow<'_, str>>| match chars {
        None => trimmed(text.as_str(), true, true).to_owned(),
        Some(chars) => text.as_str().trim_matches(|one| chars.contains(one)).to_owned(),
    });
    environment.add_filter("indent", indent);
    environment.add_filter("title", |text: StringInput<'_>| words_titled(text.as_str()));
    for name in ["e", "escape"] {
        environment.add_filter(name, |text: StringInput<'_>| escaped(text.as_str()));
    }
}

/// Returns why a template is refused for a filter.
pub(super) fn refused_in(template: &str) -> Option<String> {
    let mut rest = template;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (tag, close) = (
            &rest[at..],
            match rest.as_bytes()[at + 1] {
                b'{' => "}}",
                b'%' => "%}",
                _ => "#}",
            },
        );
        let end = tag.find(close).unwrap_or(tag.len());
        if close != "#}" {
            for filter in tag[..end].split('|').skip(1).map(str::trim_start) {
                let name = filter.split(|one: char| !one.is_alphanumeric() && one != '_').next();
                if let Some((name, reason)) = REFUSED.iter().find(|(refused, _)| name == Some(refused)) {
                    return Some(format!("its filter `{name}` is not honoured: {reason}"));
                }
            }
        }
        rest = tag.get(end + close.len()..).unwrap_or_default();
    }
    None
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return unknown_method_callback(state, value, name, args) };
    match (name, args) {
        ("strip", []) => Ok(trimmed(text, true, true).into()),
        ("lstrip", []) => Ok(trimmed(text, true, false).into()),
        ("rstrip", []) => Ok(trimmed(text, false, true).into()),
        ("strip" | "lstrip" | "rstrip", [chars]) if chars.is_none() => method(state, value, name, &[]),
        ("isspace", []) => Ok((!text.is_empty() && text.chars().all(is_space)).into()),
        ("title", []) => titled(text).map(Value::from),
        ("split", _) => split(text, args),
        ("splitlines", _) => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            let whole = |(line, end): (&str, &str)| {
                Value::from(if keep { [line, end].concat() } else { line.to_owned() })
            };
            Ok(lines(text).into_iter().map(whole).collect())
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// Whether Python's `str.isspace` holds.
fn is_space(one: char) -> bool {
    one.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&one)
}

fn trimmed(text: &str, at_start: bool, at_end: bool) -> &str {
    let text = if at_start { text.trim_start_matches(is_space) } else { text };
    if at_end { text.trim_end_matches(is_space) } else { text }
}

/// `str.split`.
fn split(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep: Option<Value> = sep.or(named.get("sep")?);
    let most = most.or(named.get("maxsplit")?).and_then(|most| usize::try_from(most).ok());
    named.assert_all_used()?;
    if let Some(sep) = sep.filter(|sep| !sep.is_none()) {
        let wrong = || Error::new(ErrorKind::InvalidOperation, "split takes a text that is not empty");
        let sep = sep.as_str().filter(|sep| !sep.is_empty()).ok_or_else(wrong)?;
        let parts = most.map_or(usize::MAX, |most| most.saturating_add(1));
        return Ok(text.splitn(parts, sep).map(Value::from).collect());
    }
    let (mut parts, mut rest) = (Vec::new(), trimmed(text, true, false));
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| most.is_none_or(|most| parts.len() < most));
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(Value::from(part));
        rest = trimmed(behind, true, false);
    }
    Ok(parts.into())
}

/// Lines and their ends, as `str.splitlines` finds them.
fn lines(text: &str) -> Vec<(&str, &str)> {
    let is_end = |one: char| {
        matches!(
            one,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut all, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (line, behind) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
        let length =
            if behind.starts_with("\r\n") { 2 } else { behind.chars().next().map_or(0, char::len_utf8) };
        let (end, next) = behind.split_at(length);
        all.push((line, end));
        rest = next;
    }
    all
}

/// `str.title`: a letter behind no other letter is a capital.
fn titled(text: &str) -> Result<String, Error> {
    let (mut out, mut is_within) = (String::with_capacity(text.len()), false);
    for one in text.chars() {
        let is_cased = one.is_uppercase() || one.is_lowercase();
        // Letters with a third form, or whose form depends on their place.
        let has_more = matches!(one, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{3a3}' | '\u{10d0}'..='\u{10ff}');
        if has_more || one.to_uppercase().count() > 1 || one.to_lowercase().count() > 1 {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("title() of {one:?} is not known")));
        }
        match is_within {
            true => out.extend(one.to_lowercase()),
            false => out.extend(one.to_uppercase()),
        }
        is_within = is_cased;
    }
    Ok(out)
}

/// Jinja's filter `title`: a word begins behind a blank, a hyphen or a bracket.
fn words_titled(text: &str) -> String {
    let is_between = |one: char| is_space(one) || matches!(one, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(is_between) {
        let mut rest = part.chars();
        out.extend(rest.next().into_iter().flat_map(char::to_uppercase));
        out += &rest.as_str().to_lowercase();
    }
    out
}

/// Jinja's `escape`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&#34;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

/// Jinja's `indent(width=4, first=False, blank=False)`.
fn indent(
    text: StringInput<'_>,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let width: Option<Value> = width.or(named.get("width")?);
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let with = match width.as_ref().map(|width| (width.as_str(), width.as_usize())) {
        None => " ".repeat(4),
        Some((Some(text), _)) => text.to_owned(),
        Some((None, Some(count))) if count <= INDENT_MAX => " ".repeat(count),
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "indent with this width")),
    };
    let whole = format!("{}\n", text.as_str());
    let mut out = String::new();
    for (at, (line, _)) in lines(&whole).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            out += &with;
        }
        out += line;
    }
    Ok(out)
}
