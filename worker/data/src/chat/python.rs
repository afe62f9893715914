//! Functions and filters that transformers gives to chat templates, as Python computes them.

use std::fmt;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::date::Date;
use super::{numbers, texts};

/// Message for a list or a mapping that is printed.
pub(super) const PRINTS: &str = "it prints a list or a mapping, in Python's own form: print it with `tojson`";

/// Whether a value prints as in Python.
pub(super) fn is_printed(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
}

/// The message of a template's `raise_exception`.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Adds them to an environment. `date` is the day of `strftime_now`, which is undefined without it: prepared data must not depend on a clock.
pub(super) fn add_to(environment: &mut Environment<'_>, date: Option<Date>) {
    environment.add_function("raise_exception", |message: String| {
        let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err::<Value, Error>(error.with_source(Raised(message)))
    });
    environment.add_filter("tojson", tojson);
    texts::add_to(environment);
    environment.add_filter("string", |value: &Value| match numbers::shown(value) {
        Some(number) => Ok(Value::from(number)),
        None if value.as_str().is_some() => Ok(value.clone()),
        None if is_printed(value) => Ok(Value::from(value.to_string())),
        None => Err(Error::new(ErrorKind::InvalidOperation, PRINTS)),
    });
    environment.add_test("number", |value: &Value| {
        value.kind() == ValueKind::Bool || numbers::is_integer(value).is_some()
    });
    environment.add_test("integer", |value: &Value| numbers::is_integer(value) == Some(true));
    environment.add_test("float", |value: &Value| numbers::is_integer(value) == Some(false));
    // As Jinja's tests: what has a length and items, and what can be iterated over.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | String | Seq | Map | Iterable)
    });
    if let Some(date) = date {
        environment.add_function("strftime_now", move |format: String| {
            date.formatted(&format).map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
        });
    }
}

/// `json.dumps` with `ensure_ascii=False` by default.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let (ascii, sorted): (Option<bool>, Option<bool>) =
        (options.get("ensure_ascii")?, options.get("sort_keys")?);
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(count)) if count <= INDENT_MAX => " ".repeat(count),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "tojson with this indent")),
        }),
    };
    let separators = match (separators.as_deref(), &indent) {
        (Some([item, key]), _) => [item.clone(), key.clone()],
        (Some(_), _) => return Err(Error::new(ErrorKind::InvalidOperation, "separators are two texts")),
        (None, None) => [", ".to_owned(), ": ".to_owned()],
        (None, Some(_)) => [",".to_owned(), ": ".to_owned()],
    };
    let mut dump = Dump {
        out: String::new(),
        is_ascii: ascii.unwrap_or(false),
        is_sorted: sorted.unwrap_or(false),
        indent,
        separators,
    };
    dump.value(value, 0)?;
    Ok(Value::from(dump.out))
}

/// Most blanks of a level.
const INDENT_MAX: usize = 64;
/// Most levels, as in the JSON that is read.
const DEPTH_MAX: usize = 128;

struct Dump {
    out: String,
    is_ascii: bool,
    is_sorted: bool,
    indent: Option<String>,
    separators: [String; 2],
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson of too many levels"));
        }
        if let Some(number) = numbers::written(value) {
            self.out += &number;
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let name = match key.kind() {
                        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
                        _ => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: a key is no text")),
                    };
                    pairs.push((name, value.get_item(&key)?));
                }
                if self.is_sorted {
                    pairs.sort_by(|one, other| one.0.cmp(&other.0));
                }
                self.many(['{', '}'], pairs.len(), depth, |dump, at| {
                    let (name, value) = &pairs[at];
                    dump.text(name);
                    dump.out += &dump.separators[1].clone();
                    dump.value(value, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.many(['[', ']'], items.len(), depth, |dump, at| dump.value(&items[at], depth + 1))?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson of a value that is {kind}"),
                ));
            }
        }
        Ok(())
    }

    fn many(
        &mut self,
        brackets: [char; 2],
        count: usize,
        depth: usize,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(brackets[0]);
        for at in 0..count {
            if at > 0 {
                self.out += &self.separators[0].clone();
            }
            self.new_line(depth + 1);
            each(self, at)?;
        }
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out += &indent.repeat(depth);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                control if control < ' ' || self.is_ascii && !control.is_ascii() => {
                    let mut units = [0; 2];
                    for unit in control.encode_utf16(&mut units) {
                        self.out += &format!("\\u{unit:04x}");
                    }
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }
}
