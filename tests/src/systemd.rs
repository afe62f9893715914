//! The units of `deploy/systemd`, parsed like systemd does, so that tests can compare them with the real
//! command lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A unit: its settings, in order.
#[derive(Clone, Debug)]
pub struct Unit {
    settings: Vec<(String, String)>,
}

/// Returns `deploy/systemd` of this checkout.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd")
}

impl Unit {
    /// Reads a unit of this checkout; `%i` becomes the instance, and `%S` the system's state folder.
    ///
    /// # Errors
    /// It cannot be read, or has a line that is neither a section nor a setting.
    pub fn read(name: &str, instance: &str) -> Result<Self> {
        let path = folder().join(name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '[']));
        let settings = lines.map(|line| {
            let (key, value) = line.split_once('=').with_context(|| format!("{name}: {line}"))?;
            Ok((key.to_owned(), value.replace("%i", instance).replace("%S", "/var/lib")))
        });
        Ok(Self { settings: settings.collect::<Result<_>>()? })
    }

    /// Returns the single value of a setting.
    ///
    /// # Errors
    /// It is missing or repeated.
    pub fn get(&self, key: &str) -> Result<&str> {
        let values: Vec<_> = self.settings.iter().filter(|(name, _)| name == key).collect();
        ensure!(values.len() == 1, "{key} occurs {} times", values.len());
        Ok(&values[0].1)
    }

    /// Returns all settings, in order.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the words of `ExecStart=`: `${NAME}` expands within a word, and `$NAME` into words.
    ///
    /// # Errors
    /// A variable is missing.
    pub fn command_line(&self, variables: &BTreeMap<String, String>) -> Result<Vec<String>> {
        let value = |name: &str| variables.get(name).with_context(|| format!("no variable {name}"));
        let mut words = Vec::new();
        for word in self.get("ExecStart")?.split_whitespace() {
            if let Some(name) = word.strip_prefix('$').filter(|name| !name.starts_with('{')) {
                words.extend(value(name)?.split_whitespace().map(str::to_owned));
                continue;
            }
            let mut parts = word.split("${");
            let mut expanded = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let (name, rest) = part.split_once('}').with_context(|| format!("{word} is not closed"))?;
                expanded += value(name)?;
                expanded += rest;
            }
            words.push(expanded);
        }
        Ok(words)
    }
}

/// Parses the variables of an environment file.
///
/// # Errors
/// A line sets nothing.
pub fn variables(text: &str) -> Result<BTreeMap<String, String>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let set = lines.map(|line| {
        let (name, value) = line.split_once('=').with_context(|| format!("{line} sets nothing"))?;
        Ok((name.to_owned(), value.trim_matches('"').to_owned()))
    });
    set.collect()
}
