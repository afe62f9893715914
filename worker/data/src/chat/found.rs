//! The chat template of a tokenizer, and its special tokens, as transformers finds them.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::date::Date;
use super::template::{ChatTemplate, TEMPLATE_BYTES_MAX};
use crate::DataError;
use crate::error::READ_TEMPLATE;

const TEMPLATE: &str = "chat_template.jinja";
/// Files of JSON with a template, in order.
const CONFIGS: [&str; 2] = ["tokenizer_config.json", "chat_template.json"];
/// Files of JSON with special tokens, in order.
const SPECIALS: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];
/// Key of the template in them.
const KEY: &str = "chat_template";
/// The template without a name of its own, among several.
const DEFAULT: &str = "default";
const END: &str = "eos_token";
/// Special tokens that templates use.
const NAMES: [&str; 7] = ["bos_token", END, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Most bytes of such a file: those with many added tokens have some MB.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// The files found.
#[derive(Debug, Default)]
pub(super) struct Found {
    source: Option<(PathBuf, String)>,
    /// Names and texts.
    specials: Vec<(String, String)>,
    /// Special tokens that a file declares absent.
    absent: Vec<&'static str>,
}

/// Looks for a template in the given file, or else in the folder of a tokenizer.
///
/// # Errors
/// A file cannot be read.
pub(super) fn find(given: Option<&Path>, beside: Option<&Path>) -> Result<Found, DataError> {
    let source = match (given, beside) {
        (Some(path), _) => Some((path.to_owned(), read(path, TEMPLATE_BYTES_MAX)?)),
        (None, Some(folder)) => template_in(folder)?,
        (None, None) => None,
    };
    let mut found = Found { source, ..Found::default() };
    let Some(folder) = beside else { return Ok(found) };
    for name in SPECIALS {
        let Some(config) = json(&folder.join(name))? else { continue };
        for special in NAMES.iter().filter(|special| config.get(**special).is_some()) {
            let is_known = found.specials.iter().any(|(name, _)| name == special);
            let value = &config[*special];
            match value.as_str().or_else(|| value.get("content")?.as_str()) {
                Some(text) if !is_known => found.specials.push(((*special).to_owned(), text.to_owned())),
                Some(_) => {}
                None => found.absent.push(special),
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Returns the token behind a text.
    pub(super) fn end(&self) -> Option<String> {
        self.specials.iter().find(|(name, _)| name == END).map(|(_, text)| text.clone())
    }

    /// Compiles the template, if there is one.
    ///
    /// # Errors
    /// It is no template, or needs a special token that the tokenizer does not name.
    pub(super) fn template(self, date: Option<Date>) -> Result<Option<ChatTemplate>, DataError> {
        let Some((path, source)) = self.source else { return Ok(None) };
        let refused = |reason| DataError::ChatTemplate { place: path.display().to_string(), reason };
        let is_unknown = |name: &&&str| {
            source.contains(**name)
                && !self.absent.contains(*name)
                && !self.specials.iter().any(|(known, _)| known == **name)
        };
        if let Some(name) = NAMES.iter().find(is_unknown) {
            return Err(refused(format!(
                "it uses `{name}`, which no tokenizer_config.json beside the tokenizer names: add that file, or write the token into the template"
            )));
        }
        ChatTemplate::new(&source, self.specials, date).map(Some).map_err(refused)
    }
}

fn template_in(folder: &Path) -> Result<Option<(PathBuf, String)>, DataError> {
    let path = folder.join(TEMPLATE);
    if path.is_file() {
        let source = read(&path, TEMPLATE_BYTES_MAX)?;
        return Ok(Some((path, source)));
    }
    for name in CONFIGS {
        let path = folder.join(name);
        let Some(config) = json(&path)? else { continue };
        let refused = |reason: &str| {
            let place = path.display().to_string();
            Err(DataError::ChatTemplate { place, reason: reason.to_owned() })
        };
        match config.get(KEY) {
            None | Some(Value::Null) => {}
            Some(Value::String(source)) => return Ok(Some((path, source.clone()))),
            Some(Value::Array(named)) => {
                let mut sources = named.iter().filter(|one| one["name"] == DEFAULT);
                return match sources.next().and_then(|one| one["template"].as_str()) {
                    Some(source) => Ok(Some((path, source.to_owned()))),
                    None => refused(
                        "of its chat templates, none is called `default`: name the file of one in data.conversations.chat_template",
                    ),
                };
            }
            Some(_) => return refused("its chat_template is neither a text nor a list of named ones"),
        }
    }
    Ok(None)
}

/// Reads a file of JSON; `None`: there is none.
fn json(path: &Path) -> Result<Option<Value>, DataError> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = read(path, CONFIG_BYTES_MAX)?;
    serde_json::from_str(&text).map(Some).map_err(|error| DataError::ChatTemplate {
        place: path.display().to_string(),
        reason: format!("it is no JSON: {error}"),
    })
}

fn read(path: &Path, bytes_max: u64) -> Result<String, DataError> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(DataError::io(READ_TEMPLATE, path))?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(DataError::io(READ_TEMPLATE, path))?;
    if text.len() as u64 > bytes_max {
        let reason = format!("it has more than {bytes_max} bytes");
        return Err(DataError::ChatTemplate { place: path.display().to_string(), reason });
    }
    Ok(text)
}
