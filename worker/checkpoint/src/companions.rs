//! Files beside a model's weights: tokenizer, chat template, generation settings, licence. Checkpoints carry them on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::MODEL_CONFIG;
use super::adapters::{ADAPTER_CONFIG, BASE};

/// Names of such files. Peers name them by their place, so the order is part of the protocol.
const NAMES: [&str; 19] = [
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    CHAT_TEMPLATE,
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    ADAPTER_CONFIG,
    BASE,
];
/// Number of such files.
pub const COMPANIONS_MAX: usize = NAMES.len();
/// Most bytes of one: the largest tokenizers have tens of MB.
pub(super) const COMPANION_BYTES_MAX: u64 = 256 << 20;
/// The chat template.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// A file beside a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Companion(u8);

impl Companion {
    /// Returns the file of this name, if it is one.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::all().find(|companion| companion.name() == name)
    }

    /// Returns those of a pretrained model.
    pub(super) fn all_of_model() -> impl Iterator<Item = Self> {
        Self::all().filter(|companion| ![ADAPTER_CONFIG, BASE].contains(&companion.name()))
    }

    /// Returns all that may be there.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..COMPANIONS_MAX as u8).map(Self)
    }

    /// Returns its name.
    pub(super) fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }
}

impl From<Companion> for u8 {
    fn from(companion: Companion) -> Self {
        companion.0
    }
}

impl TryFrom<u8> for Companion {
    type Error = &'static str;

    fn try_from(place: u8) -> std::result::Result<Self, Self::Error> {
        if usize::from(place) < COMPANIONS_MAX { Ok(Self(place)) } else { Err("a file of a later release") }
    }
}

/// The content of a model's companions and, under its name, its original `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions(BTreeMap<String, Arc<[u8]>>);

impl Companions {
    /// Creates those of a model with a tokenizer alone.
    #[must_use]
    pub fn of_tokenizer(json: Option<Arc<[u8]>>) -> Self {
        Self(json.map(|json| (TOKENIZER.to_owned(), json)).into_iter().collect())
    }

    /// Returns the content of a file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<[u8]>> {
        self.0.get(name)
    }

    /// Returns the files, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<[u8]>)> {
        self.0.iter().map(|(name, content)| (name.as_str(), content))
    }

    /// Returns those of a whole model.
    #[must_use]
    pub fn of_model(&self) -> Self {
        let mut files = self.0.clone();
        files.retain(|name, _| ![ADAPTER_CONFIG, BASE].contains(&name.as_str()));
        Self(files)
    }

    /// Adds those that are missing.
    #[must_use]
    pub fn or(mut self, others: Self) -> Self {
        for (name, content) in others.0 {
            self.0.entry(name).or_insert(content);
        }
        self
    }
}

impl Companions {
    /// Reads those of a checkpoint's folder, and its `config.json`.
    ///
    /// # Errors
    /// One is too long, or cannot be read.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for name in Companion::all().map(Companion::name).chain([MODEL_CONFIG]) {
            let path = folder.join(name);
            let Some(metadata) = path.metadata().ok().filter(std::fs::Metadata::is_file) else { continue };
            let bytes = metadata.len();
            ensure!(
                bytes <= COMPANION_BYTES_MAX,
                "{} has {bytes} bytes, which is none of a model",
                path.display()
            );
            let content = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            files.push((name.to_owned(), content.into()));
        }
        Ok(files.into_iter().collect())
    }
}

/// Returns the tokens that end a model's text, by its `generation_config.json`, or else its `config.json`: `eos_token_id`, a number or a list.
#[must_use]
pub fn end_tokens(companions: &Companions) -> Vec<u32> {
    let ends = |name: &str| {
        let json: serde_json::Value = serde_json::from_slice(companions.get(name)?).ok()?;
        let one = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
        match json.get("eos_token_id")? {
            serde_json::Value::Array(all) => Some(all.iter().filter_map(one).collect()),
            value => one(value).map(|end| vec![end]),
        }
    };
    ["generation_config.json", MODEL_CONFIG].into_iter().find_map(ends).unwrap_or_default()
}

impl FromIterator<(String, Arc<[u8]>)> for Companions {
    fn from_iter<T: IntoIterator<Item = (String, Arc<[u8]>)>>(files: T) -> Self {
        Self(files.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_with_the_tokens_that_generation_ends_with() {
        let files = |files: &[(&str, &str)]| -> Companions {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().into())).collect()
        };
        let config = (MODEL_CONFIG, r#"{"eos_token_id": 7}"#);
        let generation = |text| ("generation_config.json", text);
        for (given, ends) in [
            (&[config][..], &[7][..]),
            (&[config, generation(r#"{"eos_token_id": [3, 4]}"#)], &[3, 4]),
            (&[config, generation("{}")], &[7]),
            (&[generation(r#"{"eos_token_id": null}"#)], &[]),
            (&[], &[]),
        ] {
            assert_eq!(end_tokens(&files(given)), ends, "{given:?}");
        }
    }
}
