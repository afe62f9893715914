//! Keys that have another name now. The old name is read until the next release.

/// Old names, within their table, and new ones.
const RENAMED: [(&str, &str, &str); 5] = [
    ("sync", "opening_every", "warmup_every"),
    ("sync", "opening_keep", "warmup_keep"),
    ("sync", "opening_rounds", "warmup_rounds"),
    ("sync", "opening_share", "warmup_share"),
    ("sync", "opening_values", "warmup_values"),
];

/// A line for each key of a `run.toml` that has its old name. A text that is no TOML has none.
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
            let read = |key: &str| read_toml::<RunConfig>(&text(key)).unwrap();
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
}
