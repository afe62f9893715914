//! `deploy/docker/Dockerfile`: its stages and their instructions.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The instructions of a stage.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Base: another stage, or an image.
    pub from: String,
    /// Keyword and arguments, with continuation lines joined.
    pub instructions: Vec<(String, String)>,
}

/// Returns `deploy/docker` of this checkout.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/docker")
}

/// Reads the stages of the file of this checkout.
///
/// # Errors
/// The file cannot be read, or a stage has no name.
pub fn stages() -> Result<Vec<Stage>> {
    let text = std::fs::read_to_string(folder().join("Dockerfile")).context("read the Dockerfile")?;
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let mut stages: Vec<Stage> = Vec::new();
    for line in joined.lines().filter(|line| !line.trim().is_empty()) {
        let (keyword, rest) = line.split_once(' ').with_context(|| format!("{line} has no argument"))?;
        let rest = rest.trim();
        if keyword == "FROM" {
            let (from, name) = rest.split_once(" AS ").with_context(|| format!("{line} has no name"))?;
            let (from, name) = (from.to_owned(), name.to_owned());
            stages.push(Stage { name, from, instructions: Vec::new() });
        } else if let Some(stage) = stages.last_mut() {
            stage.instructions.push((keyword.to_owned(), rest.to_owned()));
        }
    }
    Ok(stages)
}

impl Stage {
    /// Returns the arguments of the last instruction with this keyword.
    ///
    /// # Errors
    /// No such instruction exists.
    pub fn last(&self, keyword: &str) -> Result<&str> {
        let found = self.instructions.iter().rev().find(|(name, _)| name == keyword);
        Ok(&found.with_context(|| format!("stage {} has no {keyword}", self.name))?.1)
    }

    /// Returns the words of an instruction in JSON form: an entry point or a command.
    ///
    /// # Errors
    /// No such instruction exists, or it uses a shell.
    pub fn words(&self, keyword: &str) -> Result<Vec<String>> {
        let text = self.last(keyword)?;
        serde_json::from_str(text).with_context(|| format!("{}: {keyword} {text} is no list", self.name))
    }

    /// Returns the words of the health check's command.
    ///
    /// # Errors
    /// No health check exists, or it uses a shell.
    pub fn health_check(&self) -> Result<Vec<String>> {
        let text = self.last("HEALTHCHECK")?;
        let (_, command) = text.split_once("CMD ").context("a health check has a command")?;
        serde_json::from_str(command).with_context(|| format!("{}: {command} is no list", self.name))
    }
}
