//! The page: a table for each table of the file, and one for the presets.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use toml::{Table, Value};

use crate::parser::{self, Absent};
use crate::source::{self, Form, Member, Types};

const HEAD: &str = "\
<!-- Made from the sources by `cargo run -p longhaul-common --example config_reference > docs/book/src/configuration.md`; a test fails where it is another. -->

# Every key of run.toml

One file describes a run. Only `[run]`, `[model]` and `[data]` are required. An unknown key is refused, with the nearest known key. Invalid values, conflicting values and keys that nothing would read are refused too.

```console
$ coordinator up --config run.toml --print-config   # all of it, with every default spelled out
```

Under *default*, **needed** means that a file without the key is refused. A dash means no value; the meaning states the consequence. Names such as number formats are explained at first use.
";

const PRESETS: &str = "
## What the presets are

A preset sets each key of `[sync]`. Keys with the same value in all presets are omitted. A key that the preset does not read is refused.

";

/// Generates the page.
///
/// # Errors
/// The sources cannot be read, or an item lacks a description for users.
pub fn page() -> Result<String, Box<dyn Error>> {
    let mut page = Page { types: source::types()?, text: HEAD.to_owned(), explained: BTreeMap::new() };
    for member in &page.take("RunConfig")? {
        page.table(&[&member.name], member)?;
        if member.name == "sync" {
            page.text.push_str(PRESETS);
            page.text.push_str(&presets()?);
        }
    }
    Ok(page.text)
}

struct Page {
    types: Types,
    text: String,
    /// Heading of the first description of each type.
    explained: BTreeMap<String, String>,
}

impl Page {
    /// Takes a type, as each is described once.
    fn take(&mut self, name: &str) -> Result<Vec<Member>, String> {
        self.types.remove(name).ok_or_else(|| format!("{name} is in no source"))
    }

    /// Writes a table of the file, its choices, and its subtables.
    fn table(&mut self, path: &[&str], member: &Member) -> Result<(), Box<dyn Error>> {
        let (form, is_list) = match &member.form {
            Some(Form::List(of)) => (Some(of.as_ref()), true),
            form => (form.as_ref(), false),
        };
        let Some(Form::Named(name)) = form else {
            return Err(format!("{path:?} is no table: {form:?}").into());
        };
        let place = path.join(".");
        let heading = if is_list { format!("[[{place}]]") } else { format!("[{place}]") };
        writeln!(self.text, "\n## `{heading}`\n\n{}\n", plain(&place, &member.about)?)?;
        if let Some(first) = self.explained.get(name) {
            writeln!(self.text, "The keys are those of [`{first}`](#{}).", anchor(first))?;
            return Ok(());
        }
        let keys = self.take(name)?;
        self.explained.insert(name.clone(), heading);
        self.text.push_str("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
        let (mut tables, mut choices) = (Vec::new(), Vec::new());
        for key in &keys {
            let about = plain(&format!("{place}.{}", key.name), &key.about)?;
            let form = key.form.as_ref().ok_or("a key has a type")?;
            let (kind, is_table) = self.kind(path, &key.name, form, &mut choices)?;
            let default = shown_absent(parser::absent(path, &key.name)?, is_table);
            writeln!(self.text, "| `{}` | {kind} | {default} | {about} |", key.name)?;
            if is_table {
                tables.push(key);
            }
        }
        for (key, name, names) in choices {
            self.choice(&format!("{place}.{key}"), &name, &names)?;
        }
        for key in tables {
            let path: Vec<&str> = path.iter().copied().chain([key.name.as_str()]).collect();
            self.table(&path, key)?;
        }
        Ok(())
    }

    /// Returns the description of a key's type, and whether it is a table.
    fn kind(
        &mut self,
        path: &[&str],
        key: &str,
        form: &Form,
        choices: &mut Vec<(String, String, Vec<String>)>,
    ) -> Result<(String, bool), String> {
        let words = match form {
            Form::Whole => "whole number",
            Form::Number => "number",
            Form::Flag => "`true` or `false`",
            Form::Text => "text",
            Form::Path => "path",
            Form::List(of) if matches!(of.as_ref(), Form::Named(_)) => {
                return Ok(("list of tables, below".to_owned(), true));
            }
            Form::List(of) => {
                let (of, _) = self.kind(path, key, of, choices)?;
                return Ok((format!("list: {of}"), false));
            }
            Form::Named(name) => return self.named(path, key, name, choices),
        };
        Ok((words.to_owned(), false))
    }

    fn named(
        &mut self,
        path: &[&str],
        key: &str,
        name: &str,
        choices: &mut Vec<(String, String, Vec<String>)>,
    ) -> Result<(String, bool), String> {
        match name {
            "ArchiveLocation" | "DataLabels" => return Ok(("path or URL".to_owned(), false)),
            "DataUrl" => return Ok(("URL".to_owned(), false)),
            "Column" | "MaskToken" => return Ok(("text or whole number".to_owned(), false)),
            _ => {}
        }
        let names = parser::names(path, key);
        if names.is_empty() {
            return Ok(("table, below".to_owned(), true));
        }
        let place = self.explained.entry(name.to_owned()).or_insert_with(|| {
            choices.push((key.to_owned(), name.to_owned(), names));
            format!("{}.{key}", path.join("."))
        });
        Ok((format!("[name](#{})", anchor(place)), false))
    }

    /// Writes the names of a choice, in the order of the sources.
    fn choice(&mut self, place: &str, name: &str, names: &[String]) -> Result<(), Box<dyn Error>> {
        let members = self.take(name)?;
        if members.len() != names.len() {
            return Err(format!("{place} has the names {names:?}, and {name} others").into());
        }
        write!(self.text, "\n### `{place}`\n\n| name | meaning |\n| --- | --- |\n")?;
        for (name, member) in names.iter().zip(&members) {
            writeln!(self.text, "| `{name}` | {} |", plain(&format!("{place} = {name}"), &member.about)?)?;
        }
        Ok(())
    }
}

/// Writes the keys of `[sync]` that differ between presets.
fn presets() -> Result<String, Box<dyn Error>> {
    let presets = parser::presets()?;
    let mut text = "| key |".to_owned();
    for (name, _) in &presets {
        write!(text, " `{name}` |")?;
    }
    text.push_str("\n|");
    text.push_str(&" --- |".repeat(presets.len() + 1));
    text.push('\n');
    let value = |table: &Table, key: &str| table.get(key).map(shown).unwrap_or_default();
    for key in parser::keys(&["sync"])?.iter().filter(|key| *key != "preset") {
        let values: Vec<String> = presets.iter().map(|(_, table)| value(table, key)).collect();
        if values.iter().any(|value| *value != values[0]) {
            writeln!(text, "| `{key}` | {} |", values.join(" | "))?;
        }
    }
    Ok(text)
}

/// Returns mdBook's anchor of a heading in code.
fn anchor(heading: &str) -> String {
    heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

/// Returns a docstring for a table cell.
fn plain(place: &str, about: &str) -> Result<String, String> {
    if about.is_empty() || about.contains("[`") || about.contains("Self::") {
        return Err(format!(
            "{place} is explained to those who read the code: {about:?}; say it in words of the file"
        ));
    }
    Ok(about.replace('|', "\\|"))
}

fn shown_absent(absent: Absent, is_table: bool) -> String {
    match absent {
        Absent::Needed => "**needed**".to_owned(),
        Absent::Is(_) if is_table => "–".to_owned(),
        Absent::Is(value) => format!("`{}`", shown(&value)),
        Absent::Nothing => "–".to_owned(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        // Texts with line ends in one line, and single precision with its own digits.
        Value::String(text) => format!("{text:?}"),
        Value::Float(number) if *number == f64::from(*number as f32) => format!("{:?}", *number as f32),
        other => other.to_string(),
    }
}
