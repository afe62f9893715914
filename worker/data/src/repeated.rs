//! Keys that an object of JSON repeats: parsers keep one value, and lose the others.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::json::parse;

/// Most characters of a key in a message.
const SHOWN_MAX: usize = 40;

/// Returns why a record is refused if one of its objects repeats a key, at any depth; `None`: none does, or it is no JSON.
pub(crate) fn repeated_key(json: &[u8]) -> Option<String> {
    let Repeated(key) = parse(json).ok()?;
    key.map(|key| {
        let shown: String = key.escape_debug().take(SHOWN_MAX).collect();
        format!("it has `{shown}` twice: leave one of them out")
    })
}

/// The first repeated key.
struct Repeated(Option<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values).map(Self)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut first = None;
        while let Some(Repeated(within)) = elements.next_element()? {
            first = first.or(within);
        }
        Ok(first)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let (mut first, mut seen) = (None, BTreeSet::new());
        while let Some((name, Repeated(within))) = fields.next_entry::<String, _>()? {
            first = first.or(within);
            if seen.contains(&name) {
                first = first.or(Some(name));
            } else {
                seen.insert(name);
            }
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_of_any_object_is_named() {
        for (json, key) in [
            (r#"{"text":"a","text":"b"}"#, "text"),
            (r#"{"text":"a","te\u0078t":"a"}"#, "text"),
            (r#"{"n":NaN,"m":1e999,"n":-18446744073709551616}"#, "n"),
            (r#"{"messages":[{"role":"a","content":"b"},{"content":"c","content":null}]}"#, "content"),
            (r#"[1,[true,{"a":{"b":{},"b":[]}}]]"#, "b"),
        ] {
            let told = format!("it has `{key}` twice: leave one of them out");
            assert_eq!(repeated_key(json.as_bytes()), Some(told), "{json}");
        }
        for json in [r#"{"a":{"a":1},"b":[{"a":"a"},{"a":2}],"A":null}"#, "[]", "7", r#"{"a":1,"a""#, ""] {
            assert_eq!(repeated_key(json.as_bytes()), None, "{json}");
        }
    }
}
