//! The class of a WebDataset sample: its `.cls`, or a field of its `.json`.

use serde_json::{Number, Value};

use super::json_lines::{Object, TOO_DEEP};
use super::known::{listed, shown as shown_name};
use super::seen::Seen;
use crate::json::{is_too_deep, parse};

/// The field that means the `.cls`.
const CLS: &str = "cls";
/// Characters of a text in place of a class shown in a message.
const TEXT_CHARS_MAX: usize = 40;

/// The field of the class.
pub(super) struct ClassField {
    pub(super) name: String,
    /// Whether the configuration names it. Then it alone counts.
    pub(super) is_said: bool,
}

/// The text of a file, or the reason why it is not read.
type Content = Result<String, String>;

impl ClassField {
    /// Returns the class of a sample with these files; `None`: it has neither, and no field is named.
    ///
    /// # Errors
    /// The reason why it has no class, or two.
    pub(super) fn class(
        &self,
        cls: Option<Content>,
        json: Option<Content>,
        seen: &mut Seen,
    ) -> Result<Option<u32>, String> {
        let Self { name, is_said } = self;
        match (cls, json) {
            (Some(cls), json) if !is_said || name == CLS => {
                let class = class_of(&cls?)?;
                json.and_then(Result::ok).map_or(Ok(()), |json| self.check_same(class, &json, seen))?;
                Ok(Some(class))
            }
            (_, Some(json)) => self.class_in(&json?).map(Some),
            (None, None) if !is_said => Ok(None),
            (_, None) if name == CLS => Err("it has no .cls, which the source's `field` names".to_owned()),
            (_, None) => Err(format!(
                "it has no .json, and the source's `field` names {name:?} of it as the class: leave `field` out where the .cls counts"
            )),
        }
    }

    fn class_in(&self, json: &str) -> Result<u32, String> {
        let refused = |found: &str| format!("its .json has no number of a class in `{}`: {found}", self.name);
        let json = match parse(json.as_bytes()) {
            Ok(json) => json,
            Err(error) if error.is_data() => return Err(refused("it is no object")),
            Err(error) if is_too_deep(&error) => return Err(format!("its .json {TOO_DEEP}")),
            Err(error) => return Err(format!("its .json is none: {error}")),
        };
        let there = self.missing(&json);
        let Some(value) = self.value_of(json)? else { return Err(refused(&there)) };
        let class = value.as_u64().and_then(|class| class.try_into().ok());
        class.ok_or_else(|| refused(&no_class(&value)))
    }

    /// Describes the fields of JSON that lacks this one.
    fn missing(&self, json: &Object) -> String {
        let named = format!("its fields are {}", listed(json.values.keys().map(|name| shown_name(name))));
        let outer = self.name.split('.').next().unwrap_or_default();
        match json.values.get(outer) {
            Some(Value::Object(_)) if outer != self.name => {
                format!("{named}; a field within `{outer}` is not read: write it beside the others")
            }
            _ => format!("{named}; say with `field` which is the class, or \"cls\" for the .cls"),
        }
    }

    /// Refuses JSON whose field contradicts the class: another number, in digits or as a text, or a text that stood beside another class in an earlier
    /// sample. JSON without the field is accepted.
    fn check_same(&self, class: u32, json: &str, seen: &mut Seen) -> Result<(), String> {
        let Ok(json) = parse(json.as_bytes()) else { return Ok(()) };
        let is_same = |number: Option<f64>| number == Some(class.into());
        let (value, before) = match self.value_of(json)? {
            Some(Value::Number(number)) if !is_same(number.as_f64()) => (number.to_string(), String::new()),
            Some(Value::String(text)) if number_of(&text).is_some() => match is_same(number_of(&text)) {
                true => return Ok(()),
                false => (shown(&text), String::new()),
            },
            Some(Value::String(text)) if !text.trim().is_empty() => match seen.handle_class(&text, class) {
                Some(first) => (shown(&text), format!(", which stood beside class {first} further ahead")),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        Err(format!(
            "its .cls says class {class}, and its .json has {value} in `{}`{before}: mend one of the two, or leave it out, or say with `field` which counts: the name of a field of .json with a number, here or in another one, or \"cls\" for the .cls",
            self.name
        ))
    }

    /// Returns the value of the field, which may occur only once.
    fn value_of(&self, mut json: Object) -> Result<Option<Value>, String> {
        match json.twice.contains(&self.name) {
            true => Err(format!("its .json has two fields `{}`", self.name)),
            false => Ok(json.values.remove(&self.name)),
        }
    }
}

fn class_of(cls: &str) -> Result<u32, String> {
    let (text, kind) = (cls.trim(), number_of(cls).map(|_| " (an integer from 0 is one)"));
    text.parse()
        .map_err(|_| format!("its .cls is no number of a class: {text:.20}{}", kind.unwrap_or_default()))
}

/// Returns the number that a text is, as a decimal: ` 1`, `1.0`, `-1`, `1e0`. Names of numbers are none.
fn number_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_decimal = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse().ok().filter(|_| is_decimal)
}

fn shown(text: &str) -> String {
    let more = if text.chars().nth(TEXT_CHARS_MAX).is_some() { "…" } else { "" };
    format!("{:?}{more}", text.chars().take(TEXT_CHARS_MAX).collect::<String>())
}

/// Describes a value that is no class.
fn no_class(value: &Value) -> String {
    match value {
        Value::Null => "it is null there".to_owned(),
        Value::Bool(value) => format!("{value} is a truth value: write 0 or 1"),
        Value::Number(number) => no_integer(number),
        Value::String(text) if number_of(text).is_some() => {
            format!("{} is a text: write the number without quotes", shown(text))
        }
        Value::String(text) => format!("{} is a text: write the number of its class", shown(text)),
        Value::Array(_) => "it has a list there: write the number of one class".to_owned(),
        Value::Object(_) => "it has an object there: write the number of one class".to_owned(),
    }
}

fn no_integer(number: &Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() && value.fract() == 0.0 => {
            format!("{number} is a float: write it as an integer ({value:.0})")
        }
        Some(_) if number.is_f64() => format!("{number} is a float, and a class is an integer from 0"),
        _ => format!("{number} is none: a class is an integer from 0"),
    }
}
