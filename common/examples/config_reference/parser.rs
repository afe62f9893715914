//! Queries the parser of `run.toml`, so that the page cannot deviate from it.

use longhaul_common::config::{RunConfig, SyncConfig, SyncPreset};
use toml::{Table, Value};

/// Every table, with its required keys. Combinations are checked only after parsing.
const EVERY_TABLE: &str = r#"
[run]
name = "name"
workers = 2
steps = 100
[model]
kind = "gpt2"
[model.decoder.rope_scaling]
rope_type = "yarn"
[data]
[data.image]
height = 8
width = 8
classes = 2
[[data.sources]]
[[data.validation]]
[train.lora]
rank = 8
[train.muon]
[train.sgd]
[train.lion]
[train.adafactor]
[train.sparse_backward]
keep = 0.1
[train.selective_backward]
beta = 1
[parallel.differences]
memory_mib = 1
[sync]
[privacy]
clip = 1
noise = 1
delta = 1e-6
[secure_aggregation]
range = 1
[checkpoint]
[faults]
"#;

/// Effect of a missing key.
#[derive(Debug, PartialEq)]
pub enum Absent {
    /// The file is refused.
    Needed,
    /// The key has this default.
    Is(Value),
    /// The key has no value.
    Nothing,
}

/// Returns the keys of a table, in order.
///
/// # Errors
/// The table does not exist, or accepts any key.
pub fn keys(table: &[&str]) -> Result<Vec<String>, String> {
    let mut file = every_table();
    place(&mut file, table).ok_or("no such table")?.insert("no-such-key".to_owned(), Value::Integer(1));
    expected(file, "unknown field `no-such-key`, expected ").ok_or_else(|| format!("{table:?} takes any key"))
}

/// Returns the effect of leaving a key out.
///
/// # Errors
/// The configuration cannot be written as a file.
pub fn absent(table: &[&str], key: &str) -> Result<Absent, String> {
    let mut file = every_table();
    place(&mut file, table).ok_or("no such table")?.remove(key);
    let Ok(config) = file.try_into::<RunConfig>() else { return Ok(Absent::Needed) };
    let mut written = Table::try_from(&config).map_err(|error| error.to_string())?;
    let value = place(&mut written, table).and_then(|table| table.remove(key));
    Ok(value.map_or(Absent::Nothing, Absent::Is))
}

/// Returns the names that a key accepts; empty if it is not a choice.
pub fn names(table: &[&str], key: &str) -> Vec<String> {
    let mut file = every_table();
    if let Some(table) = place(&mut file, table) {
        table.insert(key.to_owned(), Value::String(String::new()));
    }
    expected(file, "unknown variant ``, expected ").unwrap_or_default()
}

/// Returns the names in the parser's error, if it starts with `words`.
fn expected(file: Table, words: &str) -> Option<Vec<String>> {
    let error = file.try_into::<RunConfig>().err()?;
    let names = error.message().strip_prefix(words)?;
    Some(names.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Returns the values of `[sync]` with each preset: its name and keys.
///
/// # Errors
/// A preset cannot be written as a file.
pub fn presets() -> Result<Vec<(String, Table)>, String> {
    SyncPreset::ALL.into_iter().map(keys_of).collect()
}

fn keys_of(preset: SyncPreset) -> Result<(String, Table), String> {
    let table = Table::try_from(SyncConfig::of(preset)).map_err(|error| error.to_string())?;
    let name = table.get("preset").and_then(Value::as_str).ok_or("a preset has a name")?;
    Ok((name.to_owned(), table))
}

fn every_table() -> Table {
    EVERY_TABLE.parse().expect("a text of this file is TOML")
}

/// Returns a table by its path; of a list of tables, the first.
fn place<'a>(file: &'a mut Table, path: &[&str]) -> Option<&'a mut Table> {
    path.iter().try_fold(file, |table, name| {
        match table.entry(*name).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(table) => Some(table),
            Value::Array(tables) => tables.first_mut()?.as_table_mut(),
            _ => None,
        }
    })
}
