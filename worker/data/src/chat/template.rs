//! A model's chat template, in the environment that transformers gives it (`utils/chat_template_utils.py`).

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Value, escape_formatter};

use super::captures;
use super::date::Date;
use super::extras::Extras;
use super::generation::{self, MARKS};
use super::message::Message;
use super::python::{self, Raised};
use super::traced::ReadKeys;
use super::{numbers, texts};
use crate::control_tokens::markers;

/// Most bytes of a template: a hundred times those of the longest.
pub(super) const TEMPLATE_BYTES_MAX: u64 = 1 << 20;
/// Work of a rendering: each unit is an instruction, or 64 bytes made. Bounds a template's loops and memory.
const FUEL: u64 = 1 << 22;
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Clone, Debug)]
pub(super) struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Names and texts of the tokenizer's special tokens.
    specials: Vec<(String, String)>,
    has_generation: bool,
    prompts: bool,
    /// Names that it reads and does not set, in order.
    undeclared: BTreeSet<String>,
    /// What looks like control tokens in it, and special tokens.
    markers: Vec<String>,
    uses_clock: bool,
    read_keys: ReadKeys,
    /// The tokenizer's own template for conversations with tools.
    for_tools: Option<Box<Self>>,
    hash: blake3::Hash,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// Byte ranges in generation blocks, in order.
    pub(super) generated: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// The place and the cause.
    pub(super) fn new(
        source: &str,
        specials: Vec<(String, String)>,
        date: Option<Date>,
    ) -> Result<Self, String> {
        // As Jinja reads them, in texts and between them.
        let source = &source.replace("\r\n", "\n").replace('\r', "\n");
        if let Some(reason) = texts::refused_in(source) {
            return Err(reason);
        }
        let (translated, has_generation) = generation::translated(source);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| shown(&error))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Number => {
                let shown = numbers::shown(value).map_or_else(|| value.clone(), Value::from);
                escape_formatter(out, state, &shown)
            }
            _ if python::is_printed(value) => escape_formatter(out, state, value),
            _ => Err(Error::new(minijinja::ErrorKind::InvalidOperation, python::PRINTS)),
        });
        generation::add_to(&mut environment);
        python::add_to(&mut environment, date);
        environment.add_template_owned(NAME, translated.clone()).map_err(|error| shown(&error))?;
        let mut hasher = blake3::Hasher::new();
        let date = date.map(|date| date.to_string()).unwrap_or_default();
        let names = specials.iter().flat_map(|(name, text)| [name.as_str(), text]);
        for part in [source.as_str(), &date].into_iter().chain(names) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let mut undeclared: BTreeSet<String> = environment
            .get_template(NAME)
            .map_err(|error| shown(&error))?
            .undeclared_variables(false)
            .into_iter()
            .collect();
        undeclared.extend(read_again(&translated).map(str::to_owned));
        // Compiled first as it is: messages show the place.
        let captured = captures::with_captures(&translated);
        environment.add_template_owned(NAME, captured).map_err(|error| shown(&error))?;
        let texts = [source.as_str()].into_iter().chain(specials.iter().map(|(_, text)| text.as_str()));
        let markers = texts.flat_map(markers).map(str::to_owned).collect();
        let (environment, hash) = (Arc::new(environment), hasher.finalize());
        Ok(Self {
            environment,
            specials,
            has_generation,
            prompts: source.contains("add_generation_prompt"),
            undeclared,
            markers,
            uses_clock: source.contains("strftime_now"),
            read_keys: ReadKeys::default(),
            for_tools: None,
            hash,
        })
    }

    /// Returns it with another template for conversations with tools.
    pub(super) fn with_tools(self, other: Self) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.hash.as_bytes()).update(other.hash.as_bytes());
        Self { for_tools: Some(Box::new(other)), hash: hasher.finalize(), ..self }
    }

    /// Returns the template for a conversation.
    ///
    /// # Errors
    /// It has tools, and the template does not read them.
    pub(super) fn of(&self, extras: &Extras) -> Result<&Self, String> {
        let template = match extras.tools() {
            None => self,
            Some(_) => self.for_tools.as_deref().unwrap_or(self),
        };
        if extras.tools().is_some() && !template.undeclared.contains("tools") {
            return Err(not_read("tools"));
        }
        Ok(template)
    }

    /// Returns what looks like control tokens in its text and that for tools, and special tokens.
    pub(super) fn markers(&self) -> BTreeSet<&str> {
        let of_both = [Some(self), self.for_tools.as_deref()].into_iter().flatten();
        of_both.flat_map(|template| template.markers.iter().map(String::as_str)).collect()
    }

    /// Returns the names that it reads and does not set.
    pub(super) fn undeclared(&self) -> impl Iterator<Item = &str> {
        self.undeclared.iter().map(String::as_str)
    }

    /// Whether it knows prompts for an answer.
    pub(super) fn prompts(&self) -> bool {
        self.prompts
    }

    /// Whether it marks generated text.
    pub(super) fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// Identifies all that determines what it renders.
    pub(super) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    /// Returns the keys of messages that some conversation's text depends on.
    pub(super) fn read_keys(&self) -> &ReadKeys {
        &self.read_keys
    }

    /// Renders messages.
    ///
    /// # Errors
    /// The template refuses them or fails, or they have a character that no text has.
    pub(super) fn render(
        &self,
        messages: &[Message],
        extras: &Extras,
        prompts: bool,
    ) -> Result<Rendered, String> {
        self.render_values(messages.iter().map(Message::value).collect(), extras, prompts)
    }

    /// Renders the values of messages.
    ///
    /// # Errors
    /// As for messages.
    pub(super) fn render_values(
        &self,
        messages: Vec<Value>,
        extras: &Extras,
        prompts: bool,
    ) -> Result<Rendered, String> {
        let own = [
            ("messages", messages.into()),
            ("tools", extras.tools().cloned().unwrap_or_else(|| Value::from(()))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(prompts)),
        ];
        let specials = self.specials.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str())));
        // As in transformers, variables replace special tokens.
        let context = Value::from_pairs(own.into_iter().chain(specials).chain(extras.variables()));
        let template = self.environment.get_template(NAME).map_err(|error| shown(&error))?;
        let rendered = template.render(context).map_err(|error| self.refused(&error))?;
        let (text, generated) = generation::unmarked(&rendered);
        Ok(Rendered { text, generated })
    }

    fn refused(&self, error: &Error) -> String {
        let shown = shown(error);
        let date = self.uses_clock && shown.contains("strftime_now");
        let remedy = if date { ": it asks for the date: say data.conversations.date" } else { "" };
        format!("{shown}{remedy}")
    }
}

/// Returns the names that minijinja does not see read: those that are set from themselves (`set a = a or b`), and those that are sliced.
fn read_again(source: &str) -> impl Iterator<Item = &str> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let names = source.split(move |char| !is_part(char)).filter(|name| !name.is_empty());
    names.filter(move |name| {
        let start = name.as_ptr() as usize - source.as_ptr() as usize;
        let behind = source[start + name.len()..].trim_start();
        let value = behind.strip_prefix('=').filter(|value| !value.starts_with('='));
        let is_set = source[..start].trim_end().ends_with("set");
        let value = value.filter(|_| is_set).and_then(|value| value.split("%}").next());
        value.is_some_and(|value| value.split(|char| !is_part(char)).any(|own| own == *name))
            || behind.starts_with('[') && behind.split(']').next().is_some_and(|index| index.contains(':'))
    })
}

/// Returns why a conversation is refused that has something a template does not read.
pub(super) fn not_read(name: &str) -> String {
    format!(
        "it has {name}, and the chat template does not read `{name}`: name one that does in data.conversations.chat_template, or leave the conversation out"
    )
}

/// Returns the same for a message of whose calls a template prints some.
pub(super) fn some_not_read(name: &str) -> String {
    format!(
        "the chat template prints only some of its {name}: name one that prints all in data.conversations.chat_template, or leave the conversation out"
    )
}

/// Whether a text has a character that marks generated text.
pub(super) fn has_marks(text: &str) -> bool {
    text.contains(MARKS)
}

/// Returns an error in words.
fn shown(error: &Error) -> String {
    let mut cause = error.source();
    while let Some(next) = cause {
        if let Some(Raised(message)) = next.downcast_ref() {
            return format!("the chat template refuses it: {message}");
        }
        cause = next.source();
    }
    let (place, words) =
        (error.line(), error.detail().map_or_else(|| error.kind().to_string(), str::to_owned));
    let place = place.map(|line| format!(" in line {line}")).unwrap_or_default();
    format!("the chat template fails{place}: {words}")
}
