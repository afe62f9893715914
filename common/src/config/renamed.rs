//! Renamed keys. The old name is accepted until the next release.

use std::borrow::Cow;

/// Table, old name and new name.
const RENAMED: [(&str, &str, &str); 5] = [
    ("sync", "opening_every", "warmup_every"),
    ("sync", "opening_keep", "warmup_keep"),
    ("sync", "opening_rounds", "warmup_rounds"),
    ("sync", "opening_share", "warmup_share"),
    ("sync", "opening_values", "warmup_values"),
];

/// Replaces old names in a `run.toml`, line by line.
pub(crate) fn with_new_names(text: &str) -> Cow<'_, str> {
    if !RENAMED.iter().any(|(_, old, _)| text.contains(old)) {
        return Cow::Borrowed(text);
    }
    let mut table = "";
    let lines = text.split_inclusive('\n').map(|line| {
        let begun = line.trim_start();
        if let Some(name) = begun.strip_prefix('[') {
            table = name.split(']').next().unwrap_or_default().trim();
        }
        let of_line = RENAMED.iter().find(|(within, old, _)| {
            let behind = begun.strip_prefix(old).map(str::trim_start);
            *within == table && behind.is_some_and(|behind| behind.starts_with('='))
        });
        of_line.map_or(Cow::Borrowed(line), |(_, old, new)| Cow::Owned(line.replacen(old, new, 1)))
    });
    Cow::Owned(lines.collect())
}

/// Returns a line for each key with an old name; none for invalid TOML.
#[must_use]
pub fn renamed_keys(text: &str) -> Vec<String> {
    let Ok(tables) = text.parse::<toml::Table>() else { return Vec::new() };
    let is_there = |table: &str, key: &str| tables.get(table).is_some_and(|table| table.get(key).is_some());
    let told = |(table, old, new): &(&str, &str, &str)| {
        is_there(table, old).then(|| {
            format!("{table}.{old} is called {table}.{new} now: the next release refuses the old name")
        })
    };
    RENAMED.iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RunConfig, read_toml};

    const SMALL: &str = "[run]\nname = \"a\"\nworkers = 2\nsteps = 99\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n[data]\npath = \"a\"\nsequence_length = 8\n";

    #[test]
    fn an_old_name_is_read_as_the_new_one_and_told() {
        for (old, new) in [
            ("opening_rounds = 12", "warmup_rounds = 12"),
            ("opening_share = 0.25", "warmup_share = 0.25"),
            ("opening_every = 3", "warmup_every = 3"),
            ("opening_keep = 64", "warmup_keep = 64"),
            ("opening_values = \"f16\"", "warmup_values = \"f16\""),
        ] {
            let text = |key: &str| format!("{SMALL}\n[sync]\n{key}\n");
            let read = |key: &str| read_toml::<RunConfig>(&with_new_names(&text(key))).unwrap();
            assert_eq!(read(old), read(new), "{old}");
            assert_ne!(read(old), read(""), "{old}");
            let told = renamed_keys(&text(old));
            let key = new.split(' ').next().unwrap();
            assert!(told.len() == 1 && told[0].contains(&format!("is called sync.{key} now")), "{told:?}");
            assert!(renamed_keys(&text(new)).is_empty());
            let both = RunConfig::parse(&text(&format!("{old}\n{new}"))).unwrap_err().to_string();
            assert!(both.contains("duplicate"), "{both}");
        }
        assert!(renamed_keys("[sync").is_empty());
    }

    #[test]
    fn what_is_no_key_of_its_table_stays() {
        for text in [
            "[run]\nname = \"opening_share = 1\"\n",
            "[run]\nopening_share = 1\n",
            "[sync]\n# opening_share = 1\nopening_shares = 1\n",
            "[sync]\nwarmup_share = 1\n[data]\nopening_share = 1\n",
        ] {
            assert_eq!(with_new_names(text), text);
        }
        assert_eq!(
            with_new_names("[ sync ] # a\r\n  opening_keep=3\r\n"),
            "[ sync ] # a\r\n  warmup_keep=3\r\n"
        );
    }
}
