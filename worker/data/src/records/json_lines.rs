//! JSON objects, one per line.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::encoding::NotUtf8;
use super::fields::{key, no_text};
use super::input::{Input, MARK, Packing, Position, command};
use super::known::shown;
use super::remedies::Remedies;
use super::{Record, Records, faults};
use crate::bounds::RECORD_BYTES_MAX;
use crate::json::{is_filled, is_too_deep, parse};
use crate::notes::{Note, Notes};
use crate::{DataError, Recipe};

/// Message for JSON nested more deeply than the parser's stack permits.
pub(super) const TOO_DEEP: &str = "is nested too deep: JSON of fewer than 128 levels is read";

/// Upper bound of bytes to examine after an incomplete first line: some lines of most files.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// The character before each object of a JSON text sequence (RFC 7464).
const RECORD_SEPARATOR: u8 = 0x1e;

/// The texts of one field.
pub(super) struct JsonLines {
    path: PathBuf,
    lines: BufReader<Box<dyn Read>>,
    position: Position,
    field: String,
    separator: String,
    line: u64,
    bytes: Vec<u8>,
    /// Whether a non-blank line was read.
    has_begun: bool,
    packing: Option<Packing>,
    /// Whether a line had characters beyond ASCII.
    has_characters: bool,
    remedies: Remedies,
    notes: Notes,
}

impl JsonLines {
    pub(super) fn new(input: Input, recipe: &Recipe) -> Self {
        Self {
            path: input.path,
            lines: BufReader::new(input.reader),
            position: input.position,
            field: recipe.field.clone(),
            separator: recipe.separator.clone(),
            line: 0,
            bytes: Vec::new(),
            has_begun: false,
            packing: input.packing,
            has_characters: false,
            remedies: Remedies::default(),
            notes: Notes::default(),
        }
    }

    /// Refuses a file that is one array, at its first line: each of its lines would be a bad record.
    fn check_no_array(&mut self, is_whole: bool) -> Result<(), DataError> {
        let Some(inside) = self.bytes.trim_ascii_start().strip_prefix(b"[") else { return Ok(()) };
        let elements = if inside.trim_ascii_start().starts_with(b"\"") {
            key(&self.field).map(|field| format!(".[] | {{{field}: .}}"))
        } else {
            Some(".[]".to_owned())
        };
        let is_one = match parse::<IgnoredAny>(&self.bytes) {
            Ok(_) => self.is_blank_from_here()?,
            Err(error) if is_whole => error.is_eof() && !begins_with_object(&self.ahead()?),
            Err(_) => true,
        };
        if !is_one {
            return Ok(());
        }
        let remedy = match elements {
            Some(elements) => {
                let lines = command(self.packing, &format!("jq -c '{elements}'"), "OUT.jsonl");
                format!("{lines} makes lines of it")
            }
            None => {
                format!("write each of its texts on a line, in an object's field `{}`", shown(&self.field))
            }
        };
        let what = format!("one JSON array, and no object on each line: {remedy}");
        Err(DataError::OtherContent { path: self.path.clone(), what })
    }

    /// Returns the next bytes, up to the end of a second non-blank line, without consuming them.
    fn ahead(&mut self) -> Result<Vec<u8>, DataError> {
        let (mut ahead, mut lines) = (Vec::new(), 0);
        while lines < 2 {
            let (start, left) = (ahead.len(), AHEAD_BYTES_MAX.saturating_sub(ahead.len() as u64));
            let read = self.lines.by_ref().take(left).read_until(b'\n', &mut ahead);
            if read.map_err(DataError::io("read", &self.path))? == 0 {
                break;
            }
            lines += usize::from(!ahead[start..].trim_ascii().is_empty());
        }
        let nothing: Box<dyn Read> = Box::new(io::empty());
        let rest = std::mem::replace(&mut self.lines, BufReader::new(nothing));
        self.lines = BufReader::new(Box::new(Cursor::new(ahead.clone()).chain(rest)));
        Ok(ahead)
    }

    /// Whether only white space follows; skips it.
    fn is_blank_from_here(&mut self) -> Result<bool, DataError> {
        loop {
            let rest = self.lines.fill_buf().map_err(DataError::io("read", &self.path))?;
            if rest.is_empty() {
                return Ok(true);
            }
            if !rest.iter().all(u8::is_ascii_whitespace) {
                return Ok(false);
            }
            let (bytes, lines) = (rest.len(), rest.iter().filter(|byte| **byte == b'\n').count());
            self.lines.consume(bytes);
            self.line += lines as u64;
        }
    }

    /// Returns the text of the line read last, or its fault.
    fn text(&mut self) -> Result<String, String> {
        let Object { values: mut object, twice } = match parse(&self.bytes) {
            Ok(object) => object,
            Err(error) => return Err(self.no_object(&error)),
        };
        self.has_characters = self.has_characters || !self.bytes.is_ascii();
        if twice.contains(&self.field) {
            return Err(format!("it has two fields `{}`: leave one of them out", self.field));
        }
        if let Some(Value::String(text)) = object.get_mut(&self.field) {
            let text = std::mem::take(text) + &self.separator;
            let unread = object.iter().filter(|(name, value)| **name != self.field && is_filled(value));
            unread.for_each(|(name, _)| self.notes.name(Note::UnreadColumns, name));
            return Ok(text);
        }
        let (reason, remedy) = no_text(&object, &self.field, self.packing);
        Err(self.remedies.told(reason, remedy))
    }

    /// Returns the reason why the line read last is no object.
    fn no_object(&mut self, error: &serde_json::Error) -> String {
        if let Err(error) = str::from_utf8(&self.bytes) {
            let found = NotUtf8::new(&self.bytes, error, self.has_characters);
            let reason = format!("it is {}", found.within("the line"));
            return self.remedies.told(reason, found.remedy(self.packing));
        }
        match error.is_data() {
            true => self.remedies.told("it is no JSON object".to_owned(), self.remedy_of_value()),
            false if is_too_deep(error) => format!("it {TOO_DEEP}"),
            false if self.bytes.starts_with(MARK.as_bytes()) => {
                let remedy = format!(
                    "take it out with {}",
                    command(self.packing, "sed 's/^\\xef\\xbb\\xbf//'", "OUT.jsonl")
                );
                let reason = "it is no JSON: a byte order mark stands before it (files that were joined?)";
                self.remedies.told(reason.to_owned(), remedy)
            }
            false => {
                let remedy = if error.is_eof() { self.remedy_of_end() } else { self.remedy_of_signs(error) };
                self.remedies.told(format!("it is no JSON: {error}"), remedy)
            }
        }
    }

    /// Returns the remedy for a line that is a value other than an object.
    fn remedy_of_value(&self) -> String {
        let program = match self.bytes.trim_ascii_start().first() {
            Some(b'"') => "{text: .}",
            Some(b'[') => "{text: .[] | strings}",
            _ => return String::new(),
        };
        format!(
            "{} makes objects of its texts",
            command(self.packing, &format!("jq -c '{program}'"), "OUT.jsonl")
        )
    }

    /// Returns the remedy for invalid JSON.
    fn remedy_of_signs(&self, error: &serde_json::Error) -> String {
        let (words, line) = (error.to_string(), self.bytes.trim_ascii_end());
        let each =
            |program: &str, does: &str| format!("{} {does}", command(self.packing, program, "OUT.jsonl"));
        match () {
            () if let Some((_, reason)) = str::from_utf8(line).ok().and_then(faults::found_in) => reason.to_owned(),
            () if line.contains(&0) => each("sed 's/\\x00//g'", "takes the NUL characters out"),
            () if line.contains(&RECORD_SEPARATOR) => {
                each("sed 's/\\x1e//g'", "takes out the record separators of JSON text sequences (RFC 7464)")
            }
            () if is_comment(line) => {
                each("sed -E '/^[[:space:]]*(#|\\/\\/)/d'", "takes out the lines that are comments")
            }
            () if has_comment(line) => {
                "JSON has no comments: take them out, or write the objects with `json.dumps`".to_owned()
            }
            () if words.starts_with("control character") => {
                "a tab or another control character stands in a text as it is: write it as `json.dumps` does, with an escape".to_owned()
            }
            () if words.contains("surrogate") || words.contains("hex escape") => {
                "an escape of half a character is left, as of a text that was cut: write the texts anew, and cut between characters".to_owned()
            }
            () if words.starts_with("trailing characters") && line.ends_with(b"}") => {
                each("jq -c .", "puts each object on a line of its own")
            }
            () if words.starts_with("trailing characters") && line.ends_with(b",") => {
                each("sed 's/,[[:space:]]*$//'", "takes the commas behind the objects out")
            }
            () if line.starts_with(b"{'") => {
                "it is as Python prints an object: write it with `json.dumps`".to_owned()
            }
            () => String::new(),
        }
    }

    /// Returns the remedy for a line that ends within its object.
    fn remedy_of_end(&self) -> String {
        match self.bytes.trim_ascii_end().last() {
            Some(b'{' | b'[' | b',') => format!(
                "if objects go over several lines, {} puts each on one",
                command(self.packing, "jq -c .", "OUT.jsonl")
            ),
            _ if self.bytes.ends_with(b"\n") => String::new(),
            _ => "the file ends there, as if it was cut off: get it anew".to_owned(),
        }
    }
}

/// Whether a line is a comment of other languages.
fn is_comment(line: &[u8]) -> bool {
    let line = line.trim_ascii_start();
    line.starts_with(b"#") || line.starts_with(b"//")
}

/// Whether a line has one outside its strings.
fn has_comment(line: &[u8]) -> bool {
    let (mut bytes, mut is_quoted) = (line.iter().peekable(), false);
    // As Python prints an object, whose quotes are others.
    let is_json = !line.trim_ascii_start().starts_with(b"{'");
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => _ = bytes.next(),
            b'#' if !is_quoted => return is_json,
            b'/' if !is_quoted && matches!(bytes.peek(), Some(b'/' | b'*')) => return is_json,
            _ => {}
        }
    }
    false
}

/// Whether the first non-blank line is a whole object, and not an element of an array.
fn begins_with_object(lines: &[u8]) -> bool {
    let mut lines =
        lines.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let is_object = lines.next().is_some_and(|line| parse::<Object>(line).is_ok());
    is_object && !lines.next().is_some_and(|line| matches!(line[0], b',' | b']'))
}

/// An object, in which a field may occur more than once.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) values: Map<String, Value>,
    pub(super) twice: BTreeSet<String>,
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Object, A::Error> {
                let (mut values, mut twice) = (Map::new(), BTreeSet::new());
                while let Some((name, value)) = fields.next_entry::<String, Value>()? {
                    if values.contains_key(&name) {
                        twice.insert(name);
                    } else {
                        values.insert(name, value);
                    }
                }
                Ok(Object { values, twice })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl Records for JsonLines {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let read = self.lines.by_ref().take(RECORD_BYTES_MAX).read_until(b'\n', &mut self.bytes);
            let read = read.map_err(DataError::io("read", &self.path))? as u64;
            if read == 0 {
                return Ok(None);
            }
            let is_whole = read < RECORD_BYTES_MAX || self.bytes.ends_with(b"\n");
            if !self.has_begun && !self.bytes.iter().all(u8::is_ascii_whitespace) {
                self.has_begun = true;
                self.check_no_array(is_whole)?;
            }
            if !is_whole {
                return Err(DataError::Malformed {
                    path: self.path.clone(),
                    format: "JSON lines",
                    place: format!("line {}", self.line),
                    reason: format!(
                        "the line has more than {RECORD_BYTES_MAX} bytes: a line is one record, so divide it"
                    ),
                });
            }
            if self.bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = self.text().and_then(faults::checked);
            let bad = |reason| Record::bad(format!("{}, line {}: {reason}", self.path.display(), self.line));
            return Ok(Some(text.map_or_else(bad, Record::Text)));
        }
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }

    fn take_notes(&mut self) -> Notes {
        std::mem::take(&mut self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_writes_them_are_no_defect_and_words_in_texts_stay() {
        for (line, expected) in [
            (r#"{"text":"one","score":NaN}"#, r#"{"text":"one","score":null}"#),
            (r#"{"a":[Infinity, -Infinity,NaN],"text":"NaN"}"#, r#"{"a":[null,null,null],"text":"NaN"}"#),
            (r#"{"text":"a \"NaN\" \\","b":-Infinity}"#, r#"{"text":"a \"NaN\" \\","b":null}"#),
            (r#"{"Infinity":1}"#, r#"{"Infinity":1}"#),
            (r#"{"text":"one","n":1e999}"#, r#"{"text":"one","n":null}"#),
            (
                r#"{"n":[-1E+400, 2.5,1e-999,12e5, NaN],"1e999":"1e999 \"2e999"}"#,
                r#"{"n":[null,2.5,0.0,12e5,null],"1e999":"1e999 \"2e999"}"#,
            ),
        ] {
            let expected: Value = serde_json::from_str(expected).unwrap();
            let Object { values, .. } = parse(line.as_bytes()).unwrap();
            assert_eq!(Value::Object(values), expected, "{line}");
        }
        for line in
            ["{\"a\":nan}", "{\"a\":NaN", "{\"a\":NaNa}", "{\"a\":+Infinity}", "{NaN:1}", "NaN\"", "\"NaN"]
                .into_iter()
                .chain([
                    "{\"a\":01e999}",
                    "{\"a\":1e999e9}",
                    "{\"a\":1.e999}",
                    "{\"a\":1e999",
                    "{1e999:1}",
                    "{\"a\":--1e999}",
                ])
        {
            assert!(parse::<Object>(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn json_that_is_nested_too_deep_is_told_from_what_is_none() {
        for first in ["1", "NaN"] {
            let line =
                |levels| format!("{{\"a\":{first},\"b\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
            assert!(parse::<Object>(line(126).as_bytes()).is_ok());
            assert!(is_too_deep(&parse::<Object>(line(127).as_bytes()).unwrap_err()), "{first}");
        }
        assert!(!is_too_deep(&parse::<Object>(b"{[").unwrap_err()));
    }
}
