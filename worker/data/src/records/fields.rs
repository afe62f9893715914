//! JSON objects without text in the expected field, and conversions of them.

use serde_json::{Map, Value};

use super::input::{Packing, command};
use super::known::{MESSAGES, example, listed, meant, shown};

/// Returns the reason for missing text in an object's field, with a remedy for a file of this compression.
pub(super) fn no_text(
    object: &Map<String, Value>,
    field: &str,
    packing: Option<Packing>,
) -> (String, String) {
    let shown_field = shown(field);
    let Some(value) = object.get(field) else {
        let known = object.iter().map(|(name, value)| format!("{} ({})", shown(name), kind_of(value)));
        let reason = format!("it has no field `{shown_field}`; its fields are {}", listed(known));
        return (reason, elsewhere(object, field, packing));
    };
    let reason = format!("its field `{shown_field}` is no text but {}", kind_of(value));
    // A number or nothing may be a defect of one record.
    let made = column_of(object, field).or_else(|| made_of(field, value, field));
    let remedy = made.map(|made| made.told(packing)).unwrap_or_default();
    (reason, remedy)
}

/// Returns the remedy for a missing field.
fn elsewhere(object: &Map<String, Value>, field: &str, packing: Option<Packing>) -> String {
    let mut texts: Vec<(&str, usize)> =
        object.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?.len()))).collect();
    texts.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    let names: Vec<&str> = texts.into_iter().map(|(name, _)| name).collect();
    let say = |name: String| format!("say field = {name} if that is the text");
    let made = |sort: Sort| {
        let mut all = object.iter().filter_map(|(name, value)| made_of(name, value, field));
        all.find(|made| made.sort == sort)
    };
    let wanted = within(object, field).or_else(|| each_of(object, field)).or_else(|| made(Sort::Wanted));
    if let Some(made) = wanted {
        return made.told(packing);
    }
    if let Some(name) = meant(field, &names) {
        return say(name);
    }
    if let Some(made) = made(Sort::Talk) {
        return made.told(packing);
    }
    if let Some(name) = example(field, &names) {
        return say(name);
    }
    let if_meant = |made: Made| format!("if that is the text: {}", made.told(packing));
    made(Sort::Other).map_or_else(|| OF_ITS_OWN.to_owned(), if_meant)
}

/// A jq program that makes texts, with its description.
struct Made {
    program: String,
    does: &'static str,
    sort: Sort,
}

/// Confidence that these are the intended texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Texts with the wanted name.
    Wanted,
    /// A conversation.
    Talk,
    /// Any list or object.
    Other,
}

impl Made {
    fn told(&self, packing: Option<Packing>) -> String {
        let program = format!("jq -c '{}'", self.program);
        format!("{} {}", command(packing, &program, "OUT.jsonl"), self.does)
    }
}

const OF_ITS_OWN: &str = "write the text into a field of its own";
const A_TEXT: &str = "makes a text of it, in the field `text`";
const A_TALK: &str = "makes a text of its messages, in the field `text`, and nothing of calls of tools; to train on them as a conversation, add [data.conversations]";
const A_ROW_EACH: &str = "makes a record of each row, with the text in the field `text`";
const A_LINE_EACH: &str = "puts each of its objects on a line";

/// Finds the nested value intended by a field name with a point, which is looked up as a whole name.
fn within(object: &Map<String, Value>, field: &str) -> Option<Made> {
    let names: Vec<&str> = field.split('.').collect();
    let (first, rest) = names.split_first()?;
    let value = rest.iter().try_fold(object.get(*first)?, |value, name| value.get(*name))?;
    let program = format!("{{text: {}}}", path(&names)?);
    value.is_string().then_some(Made { program, does: A_TEXT, sort: Sort::Wanted })
}

/// Returns the conversion of an object whose values are records.
fn each_of(object: &Map<String, Value>, field: &str) -> Option<Made> {
    let records = object.values().filter(|value| value.get(field).is_some_and(Value::is_string));
    (records.count() > 1).then(|| Made { program: ".[]".to_owned(), does: A_LINE_EACH, sort: Sort::Wanted })
}

/// Returns the conversion of an object of columns: lists of one length, or, as pandas writes them, objects with the same numbers as keys.
fn column_of(object: &Map<String, Value>, field: &str) -> Option<Made> {
    let (place, values) = (path(&[field])?, object.get(field)?);
    let is_column = match values {
        Value::Array(texts) => {
            let is_alike = |value: &Value| value.as_array().is_some_and(|other| other.len() == texts.len());
            object.len() > 1 && object.values().all(is_alike) && texts.iter().any(Value::is_string)
        }
        Value::Object(texts) => {
            let is_alike =
                |value: &Value| value.as_object().is_some_and(|other| other.keys().eq(texts.keys()));
            let is_number =
                |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
            texts.keys().all(is_number)
                && object.values().all(is_alike)
                && texts.values().any(Value::is_string)
        }
        _ => false,
    };
    let program = format!("{place}[] | {{text: .}}");
    is_column.then_some(Made { program, does: A_ROW_EACH, sort: Sort::Wanted })
}

/// Returns the conversion of a field with a list or an object.
fn made_of(name: &str, value: &Value, field: &str) -> Option<Made> {
    let place = path(&[name])?;
    let first = match value {
        Value::Array(values) => values.first()?,
        Value::Object(inner) => {
            let names: Vec<&str> =
                inner.iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name.as_str()).collect();
            let is_wanted = |inner: &&&str| **inner == field;
            let inner =
                names.iter().find(is_wanted).or_else(|| names.first().filter(|_| names.len() == 1))?;
            let sort = if *inner == field { Sort::Wanted } else { Sort::Other };
            let program = format!("{{text: {}}}", path(&[name, *inner])?);
            return Some(Made { program, does: A_TEXT, sort });
        }
        _ => return None,
    };
    if first.is_string() {
        let program = format!("{{text: ({place} | map(tostring) | join(\"\\n\"))}}");
        return Some(Made { program, does: A_TEXT, sort: Sort::Other });
    }
    let has = |key: &str| first.get(key).is_some_and(Value::is_string);
    if let Some((who, what)) = MESSAGES.iter().find(|(who, what)| has(who) && has(what)) {
        let program =
            format!("{{text: ([{place}[] | \"\\(.{who}): \\(.{what} // \"\")\"] | join(\"\\n\"))}}");
        return Some(Made { program, does: A_TALK, sort: Sort::Talk });
    }
    has(field).then(|| Made { program: format!("{place}[]"), does: A_LINE_EACH, sort: Sort::Wanted })
}

/// Returns jq's path of a place in an object; `None`: it needs shell escapes.
fn path(names: &[&str]) -> Option<String> {
    let mut path = ".".to_owned();
    for name in names {
        path += &format!("[{}]", key(name)?);
    }
    Some(path)
}

/// Returns a name in jq's form within shell quotes; `None`: it needs shell escapes.
pub(super) fn key(name: &str) -> Option<String> {
    (!name.contains('\'') && shown(name) == name).then(|| Value::from(name).to_string())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(object: &Value, field: &str) -> (String, String) {
        no_text(object.as_object().unwrap(), field, None)
    }

    #[test]
    fn fields_are_told_with_what_they_hold_and_the_one_that_is_probably_meant() {
        for (object, field, words, remedy) in [
            (
                json!({"id": 1, "content": "one"}),
                "text",
                "content (text), id (a number)",
                "say field = \"content\"",
            ),
            (json!({"TEXT": "one"}), "text", "TEXT (text)", "say field = \"TEXT\""),
            (
                json!({"a": "", "verse": "a long text"}),
                "text",
                "a (text), verse (text)",
                "say field = \"verse\"",
            ),
            (json!({"n": null, "is": true}), "text", "is (a boolean), n (null)", OF_ITS_OWN),
            (json!({}), "text", "its fields are none", OF_ITS_OWN),
        ] {
            let (reason, helps) = told(&object, field);
            assert!(reason.starts_with(&format!("it has no field `{field}`; ")), "{reason}");
            assert!(reason.ends_with(words), "{reason}");
            assert!(helps.starts_with(remedy), "{helps}");
        }
        let many: Map<String, Value> = (0..10).map(|n| (format!("f{n}"), json!(n))).collect();
        assert!(no_text(&many, "text", None).0.ends_with("f7 (a number) and 2 more"));
    }

    #[test]
    fn a_field_with_text_comes_before_lists_and_objects_that_have_other_names() {
        let messages = json!([{"role": "user", "content": "a"}]);
        for (object, field, remedy) in [
            (
                json!({"article_text": "a long text", "meta": {"pile_set_name": "Github"}}),
                "text",
                "say field = \"article_text\" if that is the text",
            ),
            (
                json!({"question": "a long text", "tags": ["a", "b"]}),
                "text",
                "say field = \"question\" if that is the text",
            ),
            (
                json!({"content": "a", "data": {"text": "b"}}),
                "text",
                "`jq -c '{text: .[\"data\"][\"text\"]}'",
            ),
            (
                json!({"a": "b", "a.b": 1, "meta": {"a": "c"}}),
                "meta.a",
                "`jq -c '{text: .[\"meta\"][\"a\"]}'",
            ),
            (
                json!({"source": "a", "tags": ["a"], "talk": messages}),
                "text",
                "`jq -c '{text: ([.[\"talk\"][]",
            ),
            (json!({"text": ["a", "b"], "title": "c"}), "text", "`jq -c '{text: (.[\"text\"] | map"),
        ] {
            let helps = told(&object, field).1;
            assert!(helps.starts_with(remedy), "{object}: {helps}");
        }
    }

    /// Including a name that needs quotes, and one that needs shell escapes.
    #[test]
    fn texts_within_lists_and_objects_are_told_with_what_makes_records_of_them() {
        let messages = json!([{"role": "user", "content": "a"}]);
        let text = |program: &str| {
            format!("`jq -c '{program}' IN > OUT.jsonl` makes a text of it, in the field `text`")
        };
        let lines =
            |program: &str| format!("`jq -c '{program}' IN > OUT.jsonl` puts each of its objects on a line");
        let talk = |name: &str, who: &str, what: &str| {
            let made = text(&format!(
                "{{text: ([.[\"{name}\"][] | \"\\(.{who}): \\(.{what} // \"\")\"] | join(\"\\n\"))}}"
            ));
            made.replace(A_TEXT, A_TALK)
        };
        let rows =
            |name: &str| format!("`jq -c '.[\"{name}\"][] | {{text: .}}' IN > OUT.jsonl` {A_ROW_EACH}");
        let if_meant = |made: String| format!("if that is the text: {made}");
        for (object, field, remedy) in [
            (json!({"id": "a", "messages": messages}), "text", talk("messages", "role", "content")),
            (json!({"messages": messages}), "messages", talk("messages", "role", "content")),
            (json!({"a b": [{"from": "human", "value": "a"}]}), "text", talk("a b", "from", "value")),
            (
                json!({"parts": ["a", "b"]}),
                "text",
                if_meant(text("{text: (.[\"parts\"] | map(tostring) | join(\"\\n\"))}")),
            ),
            (json!({"meta": {"source": "a"}}), "text", if_meant(text("{text: .[\"meta\"][\"source\"]}"))),
            (json!({"data": [{"text": "a"}]}), "text", lines(".[\"data\"][]")),
            (json!({"data": {"text": "a", "b": "c"}}), "text", text("{text: .[\"data\"][\"text\"]}")),
            (json!({"text": {"en": "a"}}), "text", text("{text: .[\"text\"][\"en\"]}")),
            (json!({"1": {"text": "a"}, "2": {"text": "b"}}), "text", lines(".[]")),
            (json!({"a": {"b": {"c": "d"}}, "n": 1}), "a.b.c", text("{text: .[\"a\"][\"b\"][\"c\"]}")),
            (json!({"text": ["a", "b"], "n": [1, 2]}), "text", rows("text")),
            (json!({"t": {"0": "a", "1": "b"}}), "t", rows("t")),
            (
                json!({"text": ["a", "b"], "tags": ["c"]}),
                "text",
                text("{text: (.[\"text\"] | map(tostring) | join(\"\\n\"))}"),
            ),
            (json!({"it's": ["a"]}), "text", OF_ITS_OWN.to_owned()),
            (json!({"text": 5, "title": "a"}), "text", String::new()),
            (json!({"text": null, "parts": ["a"]}), "text", String::new()),
            (json!({"text": []}), "text", String::new()),
            (
                json!({"content": "a", "messages": messages}),
                "text",
                "say field = \"content\" if that is the text".to_owned(),
            ),
        ] {
            assert_eq!(told(&object, field).1, remedy, "{object}");
        }
        let packed =
            no_text(json!({"data": [{"text": "a"}]}).as_object().unwrap(), "text", Some(Packing::Zstd));
        assert!(packed.1.starts_with("`zstd -dc IN | jq -c '.[\"data\"][]' > OUT.jsonl`"), "{}", packed.1);
    }
}
