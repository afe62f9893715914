//! The chat template of a tokenizer, and its special tokens, as transformers finds them.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::date::Date;
use super::template::{ChatTemplate, TEMPLATE_BYTES_MAX};
use crate::DataError;
use crate::error::READ_TEMPLATE;

const TEMPLATE: &str = "chat_template.jinja";
/// Folder of further templates beside it: `save_pretrained` writes them as `NAME.jinja`.
const FURTHER: &str = "additional_chat_templates";
/// Files of JSON with a template, in order.
const CONFIGS: [&str; 2] = [CONFIG, "chat_template.json"];
/// Files of JSON with special tokens. Those of the second replace those of the first.
const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
/// Key of all added tokens in the first.
const ADDED: &str = "added_tokens_decoder";
/// Keys of special tokens by the model's own names.
const NEWER_GROUP: &str = "extra_special_tokens";
const OLDER_GROUP: &str = "model_specific_special_tokens";
/// Key of the template in them.
const KEY: &str = "chat_template";
/// The template without a name of its own, among several.
const DEFAULT: &str = "default";
const BEGINNING: &str = "bos_token";
/// The one for conversations with tools.
const TOOL_USE: &str = "tool_use";
const END: &str = "eos_token";
/// Special tokens that templates use.
const NAMES: [&str; 7] = [BEGINNING, END, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Most bytes of such a file: those with many added tokens have some MB.
const CONFIG_BYTES_MAX: u64 = 64 << 20;

/// A template, and where it was found.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    text: String,
    /// Another one for conversations with tools.
    for_tools: Option<String>,
}

/// The files found.
#[derive(Debug, Default)]
pub(super) struct Found {
    source: Option<Source>,
    /// Names and texts.
    specials: Vec<(String, String)>,
    /// Special tokens that a file declares absent.
    absent: Vec<String>,
}

/// Looks for a template in the given file, or else in the folder of a tokenizer.
///
/// # Errors
/// A file cannot be read.
pub(super) fn find(given: Option<&Path>, beside: Option<&Path>) -> Result<Found, DataError> {
    let source = match (given, beside) {
        (Some(path), _) => Some(Source::read(path)?),
        (None, Some(folder)) => template_in(folder)?,
        (None, None) => None,
    };
    let mut found = Found { source, ..Found::default() };
    if let Some(folder) = beside {
        found.specials_in(|name| json(&folder.join(name)))?;
    }
    Ok(found)
}

/// The special tokens around a text, by their texts, as the files beside a tokenizer name them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextEnds {
    /// `bos_token`.
    pub beginning: Option<String>,
    /// `eos_token`.
    pub end: Option<String>,
}

impl TextEnds {
    /// Reads the files in a tokenizer's folder.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn beside(folder: Option<&Path>) -> Result<Self, DataError> {
        let mut found = Found::default();
        if let Some(folder) = folder {
            found.specials_in(|name| json(&folder.join(name)))?;
        }
        Ok(Self { beginning: found.special(BEGINNING), end: found.end() })
    }

    /// Reads the same files from memory, by name. Those that are no JSON are passed over.
    #[must_use]
    pub fn among<'a>(file: impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        let mut found = Found::default();
        // Files in memory are read without an error.
        let _ = found.specials_in(|name| Ok(file(name).and_then(|bytes| serde_json::from_slice(bytes).ok())));
        Self { beginning: found.special(BEGINNING), end: found.end() }
    }
}

impl Found {
    /// Reads the special tokens of a tokenizer.
    fn specials_in(
        &mut self,
        read: impl Fn(&str) -> Result<Option<Value>, DataError>,
    ) -> Result<(), DataError> {
        let config = read(CONFIG)?;
        // If the first file lists the added tokens, transformers does not read the second.
        let is_whole = config.as_ref().is_some_and(|config| config.get(ADDED).is_some());
        let map = if is_whole { None } else { read(MAP)? };
        let files = [&config, &map].map(|file| file.as_ref().and_then(Value::as_object));
        let is_token = |(name, _): &(&String, &Value)| name.ends_with("_token");
        for (name, value) in files.iter().flatten().flat_map(|file| file.iter()).filter(is_token) {
            self.add(name, value);
        }
        // Tokens by the model's own names: those that stand alone, or in a group of newer tokenizers, or else in one of older ones.
        let [config, map] = files;
        let group = |file: Option<&Map<String, Value>>, name: &str| {
            file.and_then(|file| file.get(name)?.as_object()).cloned().unwrap_or_default()
        };
        let is_own = |(name, value): &(&String, &Value)| !NAMES.contains(&name.as_str()) && value.is_string();
        let mut own: Map<String, Value> = config
            .into_iter()
            .flatten()
            .filter(is_token)
            .filter(is_own)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        own.extend(group(config, NEWER_GROUP));
        if own.is_empty() {
            own = group(config, OLDER_GROUP);
        }
        own.extend(group(map, NEWER_GROUP));
        own.iter().for_each(|(name, value)| self.add(name, value));
        Ok(())
    }

    /// Adds a special token in place of an earlier one of this name.
    fn add(&mut self, name: &str, value: &Value) {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        if text.is_none() && !NAMES.contains(&name) {
            return;
        }
        self.specials.retain(|(known, _)| known != name);
        self.absent.retain(|known| known != name);
        match text {
            Some(text) => self.specials.push((name.to_owned(), text.to_owned())),
            None => self.absent.push(name.to_owned()),
        }
    }

    /// Returns the token behind a text.
    pub(super) fn end(&self) -> Option<String> {
        self.special(END)
    }

    fn special(&self, wanted: &str) -> Option<String> {
        self.specials.iter().find(|(name, _)| name == wanted).map(|(_, text)| text.clone())
    }

    /// Compiles the template, if there is one.
    ///
    /// # Errors
    /// It is no template, or needs a special token that the tokenizer does not name.
    pub(super) fn template(self, date: Option<Date>) -> Result<Option<ChatTemplate>, DataError> {
        let Some(Source { path, text, for_tools }) = &self.source else { return Ok(None) };
        let compiled = |text: &str| {
            let refused = |reason| DataError::ChatTemplate { place: path.display().to_string(), reason };
            let template = ChatTemplate::new(text, self.specials.clone(), date).map_err(refused)?;
            let missing = template.undeclared().find(|name| self.is_missing(name, text)).map(str::to_owned);
            match missing {
                None => Ok(template),
                Some(name) => Err(refused(format!(
                    "it uses `{name}`, which no tokenizer_config.json beside the tokenizer names: add that file, or write the token into the template"
                ))),
            }
        };
        let template = compiled(text)?;
        Ok(Some(match for_tools {
            Some(other) => template.with_tools(compiled(other)?),
            None => template,
        }))
    }

    /// Whether a variable of a template is a special token that no file names, nor declares absent.
    fn is_missing(&self, name: &str, template: &str) -> bool {
        let is_token = NAMES.contains(&name)
            || name.ends_with("_token")
                && [" is defined", " is not defined", "|default", " | default"]
                    .iter()
                    .all(|asked| !template.contains(&format!("{name}{asked}")));
        is_token
            && !self.absent.iter().any(|known| known == name)
            && !self.specials.iter().any(|(known, _)| known == name)
    }
}

impl Source {
    fn read(path: &Path) -> Result<Self, DataError> {
        Ok(Self { path: path.to_owned(), text: read(path, TEMPLATE_BYTES_MAX)?, for_tools: None })
    }
}

fn template_in(folder: &Path) -> Result<Option<Source>, DataError> {
    let path = folder.join(TEMPLATE);
    let further = folder.join(FURTHER);
    if path.is_file() {
        let for_tools = further.join(format!("{TOOL_USE}.jinja"));
        let for_tools = for_tools.is_file().then(|| read(&for_tools, TEMPLATE_BYTES_MAX)).transpose()?;
        return Ok(Some(Source { for_tools, ..Source::read(&path)? }));
    }
    // transformers reads the files of such a folder in place of all others.
    if further.is_dir() {
        let reason = format!(
            "it has no `{TEMPLATE}` beside it: name the file of one in data.conversations.chat_template"
        );
        return Err(DataError::ChatTemplate { place: further.display().to_string(), reason });
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
            Some(Value::String(text)) => {
                return Ok(Some(Source { path, text: text.clone(), for_tools: None }));
            }
            Some(Value::Array(named)) => {
                let called = |name: &str| {
                    named.iter().find(|one| one["name"] == name)?["template"].as_str().map(str::to_owned)
                };
                return match called(DEFAULT) {
                    Some(text) => Ok(Some(Source { path, text, for_tools: called(TOOL_USE) })),
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
