//! A `run.toml` that tests, benchmarks and tools compose key by key. The `toml` crate quotes its values.
#![forbid(unsafe_code)]

use std::path::Path;
use std::str::FromStr;
use std::{fmt, fs, io};

use serde::Serialize;
use toml::{Table, Value};

/// The tables at the top of a `run.toml`.
const SECTIONS: [&str; 11] = [
    "run",
    "model",
    "data",
    "train",
    "evaluate",
    "parallel",
    "sync",
    "privacy",
    "secure_aggregation",
    "checkpoint",
    "faults",
];

/// A run's configuration, which nothing has checked yet. Keys are written with their tables: `sync.every`.
///
/// Methods panic on a table that does not exist and on lines that are not TOML: both are mistakes of the calling code.
#[derive(Clone, Debug)]
#[must_use]
pub struct RunToml {
    tables: Table,
}

/// A shape of GPT-2. Sequences of data are as long as its context.
#[derive(Clone, Copy, Debug)]
pub struct Gpt2 {
    /// Transformer blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Attention heads.
    pub heads: u64,
    /// Longest sequence in tokens.
    pub context: u64,
}

impl Gpt2 {
    /// For tests in which little or nothing is computed.
    pub const TINY: Self = Self { layers: 1, width: 8, heads: 1, context: 8 };
    /// Its steps take milliseconds, and its loss falls.
    pub const SMALL: Self = Self { layers: 2, width: 64, heads: 2, context: 64 };
}

impl RunToml {
    /// A run of one step by one worker, with [`Gpt2::TINY`] and a text that does not exist.
    pub fn new(name: &str) -> Self {
        let run = Self { tables: Table::new() }.set("run.name", name).workers(1).steps(1);
        run.gpt2(Gpt2::TINY).set("data.path", "none")
    }

    /// Workers that must join.
    pub fn workers(self, workers: impl Serialize) -> Self {
        self.set("run.workers", workers)
    }

    /// Steps of each worker.
    pub fn steps(self, steps: impl Serialize) -> Self {
        self.set("run.steps", steps)
    }

    /// Sequences of a step, of all workers together.
    pub fn batch(self, batch: impl Serialize) -> Self {
        self.set("train.batch", batch)
    }

    /// Another shape; what else `[model]` has stays.
    pub fn gpt2(self, Gpt2 { layers, width, heads, context }: Gpt2) -> Self {
        let run = self.set("model.kind", "gpt2").set("model.layers", layers).set("model.width", width);
        run.set("model.heads", heads).set("model.context", context).set("data.sequence_length", context)
    }

    /// One key, in place of its value so far.
    #[track_caller]
    pub fn set(mut self, key: &str, value: impl Serialize) -> Self {
        let value = Value::try_from(value).unwrap_or_else(|error| panic!("{key}: {error}"));
        let (table, name) = key.rsplit_once('.').unwrap_or_else(|| panic!("{key} names no table"));
        let parents = table.split('.').rev();
        let inner = Table::from_iter([(name.to_owned(), value)]);
        let added =
            parents.fold(inner, |inner, parent| Table::from_iter([(parent.to_owned(), inner.into())]));
        self.add(added);
        self
    }

    /// Keys of a table as lines of TOML, beside those that it has and in place of those of the same name.
    #[track_caller]
    pub fn lines(mut self, table: &str, lines: &str) -> Self {
        let text = format!("[{table}]\n{lines}");
        self.add(text.parse().unwrap_or_else(|error| panic!("{error}in\n{text}")));
        self
    }

    /// A table with these lines of TOML and nothing else.
    #[track_caller]
    pub fn table(self, table: &str, lines: &str) -> Self {
        self.without(table).lines(table, lines)
    }

    /// Takes a key or a table away.
    pub fn without(mut self, key: &str) -> Self {
        let (table, name) = key.rsplit_once('.').map_or((None, key), |(table, name)| (Some(table), name));
        let parents = table.into_iter().flat_map(|table| table.split('.'));
        let found = parents
            .into_iter()
            .try_fold(&mut self.tables, |table, parent| table.get_mut(parent).and_then(Value::as_table_mut));
        found.and_then(|table| table.remove(name));
        self
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let mut parts = key.split('.');
        let first = self.tables.get(parts.next()?);
        parts.fold(first, |value, part| value?.get(part))
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        fs::write(path, self.to_string())
    }

    #[track_caller]
    fn add(&mut self, tables: Table) {
        for section in tables.keys() {
            assert!(SECTIONS.contains(&section.as_str()), "a run.toml has no table [{section}]");
        }
        merge(&mut self.tables, tables);
    }
}

/// Reads a whole file, as an example.
impl FromStr for RunToml {
    type Err = toml::de::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self { tables: text.parse()? })
    }
}

/// The text of the file.
impl fmt::Display for RunToml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables.fmt(f)
    }
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::{ConfigError, RunConfig};

    use super::*;

    fn parsed(run: &RunToml) -> RunConfig {
        RunConfig::parse(&run.to_string()).unwrap_or_else(|error| panic!("{error} in\n{run}"))
    }

    #[test]
    fn the_tables_are_those_of_a_run() {
        let error = RunConfig::parse("[nonsense]\n").unwrap_err();
        let ConfigError::UnknownKey { known, .. } = error else { panic!("{error}") };
        assert_eq!(known, SECTIONS.join(", "));
        assert_eq!(parsed(&RunToml::new("r")).model.width, 8);
    }

    #[test]
    #[should_panic(expected = "no table [snyc]")]
    fn an_unknown_table_is_refused() {
        let _ = RunToml::new("r").set("snyc.every", 2);
    }

    #[test]
    fn a_key_is_set_in_its_table_and_the_last_value_counts() {
        let run = RunToml::new("r").workers(4).steps(90).batch(8).gpt2(Gpt2::SMALL).set("sync.every", 2);
        let run = run.lines("sync", "every = 3\noverlap = 1").set("sync.overlap", 2);
        let run = run.lines("parallel", "stages = 2\n[parallel.differences]\nmemory_mib = 64");
        let run = run.set("train.sparse_backward.keep", 0.25).table("checkpoint", "every_rounds = 7");
        let config = parsed(&run);
        assert_eq!((config.run.workers, config.run.steps, config.train.batch), (4, 90, 8));
        assert_eq!((config.data.sequence_length, config.sync.every, config.sync.overlap), (64, 3, 2));
        assert_eq!(config.parallel.differences.map(|differences| differences.memory_mib), Some(64));
        assert_eq!(config.train.sparse_backward.map(|sparse| sparse.keep), Some(0.25));
        let fewer = run.table("parallel", "plan = \"fixed\"").without("train.sparse_backward");
        assert_eq!(fewer.get("parallel").map(ToString::to_string).as_deref(), Some("{ plan = \"fixed\" }"));
        assert!(fewer.get("train.batch").is_some() && fewer.get("train.sparse_backward").is_none());
        assert_eq!(parsed(&fewer.without("faults").without("privacy.clip")).checkpoint.every_rounds, 7);
    }

    #[test]
    fn paths_and_names_survive_quotes_backslashes_and_line_ends() {
        let odd = "C:\\new\t\"text\"\n'''[run] # é\u{7f}";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        RunToml::new(odd).set("data.path", Path::new(odd)).write(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let config = RunConfig::parse(&text).unwrap();
        assert_eq!(config.run.name, odd);
        assert_eq!(text.parse::<RunToml>().unwrap().get("data.path").and_then(Value::as_str), Some(odd));
    }
}
