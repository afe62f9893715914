//! Notes on a conversation and its text.

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::Value;

use super::Chat;
use super::arguments::{
    ArgumentMark, MARK, Place, marks, with_argument_marks, with_marks, without_arguments,
};
use super::leaves::{Leaf, leaves, with_leaf};
use super::message::{CALLS, Message, REASONING};
use super::spans::Chatted;
use super::template::{not_read, some_not_read};
use crate::notes::{Note, Notes};

/// Most names, and messages with reasoning, that are tried one by one: each costs a rendering.
pub(super) const TRIED_MAX: usize = 64;
/// Fewest bytes of reasoning that is found in the text.
const REASONING_BYTES_MIN: usize = 32;
/// In the place of a role, for values of arguments among the keys that are known to be read.
const ARGUMENT: &str = "argument";
/// Characters at the end of an answer by which it is found in the text.
const TAIL_CHARACTERS: usize = 32;

impl Chat {
    /// Returns the notes on a conversation with this text, of which `spans` are trained on.
    pub(super) fn notes_on(&self, chatted: &Chatted<'_>, text: &str, spans: &[Range<usize>]) -> Notes {
        let mut notes = Notes::default();
        chatted.omitted(text).for_each(|role| notes.name(Note::OmittedTexts, role));
        chatted.note_keys(text, &mut notes);
        let lacking = self.lacking.iter().filter(|name| text.contains(name.as_str()));
        lacking.for_each(|name| notes.name(Note::LackingTokens, name));
        let last = spans.last().map_or("", |span| &text[span.clone()]);
        notes.note(
            Note::EndlessAnswers,
            u64::from(is_endless(chatted.messages, last, &self.added)),
            String::new,
        );
        notes
    }
}

impl Chatted<'_> {
    /// Refuses calls of tools that the text does not have: those of a message without which it is the same, or some among several.
    ///
    /// # Errors
    /// Names them.
    pub(super) fn check_calls(&self) -> Result<(), String> {
        let all = || self.messages.iter().enumerate().filter_map(|(at, own)| Some((at, own.calls()?)));
        if all().next().is_none() {
            return Ok(());
        }
        // One rendering tells of all calls, if names are printed.
        let (marked, places) = with_marks(self.messages);
        let found = self.rendered(&marked, false).map(|rendered| marks(&rendered.text)).unwrap_or_default();
        let mut printed: BTreeMap<Place<'_>, [usize; 2]> = BTreeMap::new();
        for (number, (at, calls)) in places.iter().enumerate() {
            printed.entry((*at, calls)).or_default()[usize::from(found.contains(&number))] += 1;
        }
        let mut text = None;
        for place @ (at, name) in all() {
            match printed.get(&place) {
                Some([0, _]) => {}
                Some([_, found]) if *found > 0 => {
                    return Err(format!("message {}: {}", at + 1, some_not_read(name)));
                }
                _ => {
                    let text = match &mut text {
                        Some(text) => text,
                        none => none.insert(self.rendered(self.messages, false)?.text),
                    };
                    if self.is_same_without(text, &[Key { at, name, value: &Value::UNDEFINED }]) {
                        return Err(not_read(name));
                    }
                }
            }
        }
        self.check_arguments(text)
    }

    /// Refuses calls whose arguments the text has in part, or not at all. `text`: that of the conversation, if it is known.
    fn check_arguments(&self, text: Option<String>) -> Result<(), String> {
        let Some(emptied) = without_arguments(self.messages) else { return Ok(()) };
        let own = text.map_or_else(|| Ok(self.rendered(self.messages, false)?.text), Ok::<_, String>)?;
        let in_part = |at: usize| Err(format!("message {}: {}", at + 1, some_not_read("arguments")));
        match self.rendered(&emptied, false) {
            Ok(without) if without.text == own => return Err(not_read("arguments")),
            _ => {}
        }
        let (marked, all) = with_argument_marks(self.messages);
        // A template may refuse marks.
        let rendered = self.rendered(&marked, false).ok();
        if let Some(at) = rendered.and_then(|rendered| ArgumentMark::missing(&all, &rendered.text)) {
            return in_part(at);
        }
        let known = self.template.read_keys();
        let new = leaves(self.messages).into_iter().filter(|leaf| !known.has(ARGUMENT, &leaf.signature()));
        for leaf in new.take(TRIED_MAX) {
            if !self.has_leaf(&own, &leaf) {
                return in_part(leaf.at);
            }
            known.insert(ARGUMENT, &leaf.signature());
        }
        Ok(())
    }

    /// Whether the text is another one without a value of a call's arguments, and with another value in its place.
    fn has_leaf(&self, own: &str, leaf: &Leaf) -> bool {
        [None, Some(leaf.other())].into_iter().all(|value| {
            let changed = self.rendered(&with_leaf(self.messages, leaf, value.as_ref()), false);
            // A template may refuse the change.
            changed.map_or(true, |rendered| rendered.text != own)
        })
    }

    /// Returns the roles of the messages whose content a template has not printed as it is: templates pass over roles that they do not know, cut reasoning off, or
    /// print a message's calls alone. A rendering with a mark behind each content tells those apart that are equal, or part of another.
    fn omitted(&self, text: &str) -> impl Iterator<Item = &str> {
        let mark = |(at, message): (usize, &Message)| match message.content.trim_end() {
            "" => message.clone(),
            content => message.with_content(format!("{content}{MARK}{at}{MARK}")),
        };
        let marked: Vec<Message> = self.messages.iter().enumerate().map(mark).collect();
        // A template may refuse marks.
        let printed = self.rendered(&marked, false).ok().map(|rendered| marks(&rendered.text));
        let found = found(self.messages, text);
        let is_omitted = move |at: usize, message: &Message| {
            let is_marked = printed.as_ref().is_none_or(|printed| printed.contains(&at));
            !(message.content.trim().is_empty() || found[at] && is_marked)
        };
        let messages = self.messages.iter().enumerate();
        messages
            .filter(move |(at, message)| is_omitted(*at, message))
            .map(|(_, message)| message.role.as_str())
    }

    /// Notes the messages' filled fields without which the text is the same. A field that the template does not ask for needs no rendering.
    fn note_keys(&self, text: &str, notes: &mut Notes) {
        let fields = self
            .messages
            .iter()
            .enumerate()
            .flat_map(|(at, message)| message.beside().map(move |(name, value)| Key { at, name, value }));
        let (asked, unasked): (Vec<Key<'_>>, Vec<Key<'_>>) =
            fields.filter(|key| !CALLS.contains(&key.name)).partition(|key| self.is_asked(key));
        let unsure: Vec<Key<'_>> = asked.into_iter().filter(|key| !self.is_known(key, text)).collect();
        let asks = |at| REASONING.iter().any(|name| self.asked.has(at, name));
        let drops_reasoning = !unasked.is_empty() && (0..self.messages.len()).any(asks);
        for key in &unasked {
            notes.name(if drops_reasoning { key.unread() } else { Note::UnreadKeys }, key.name);
        }
        if unsure.is_empty() || self.is_same_without(text, &unsure) {
            unsure.iter().for_each(|key| notes.name(key.unread(), key.name));
            return;
        }
        // Reasoning is read in some messages and not in others.
        let mut groups: BTreeMap<(&str, &str, Option<usize>), Vec<Key<'_>>> = BTreeMap::new();
        for key in unsure {
            let place = (key.name, self.role_of(&key), key.is_reasoning().then_some(key.at));
            groups.entry(place).or_default().push(key);
        }
        for (tried, ((name, role, _), keys)) in groups.into_iter().enumerate() {
            let count = keys.len() as u64;
            if tried >= TRIED_MAX {
                notes.names(Note::UntriedKeys, name, count);
            } else if self.is_same_without(text, &keys) {
                notes.names(keys[0].unread(), name, count);
            } else if !keys[0].is_reasoning() {
                self.template.read_keys().insert(role, name);
            }
        }
    }

    fn role_of(&self, key: &Key<'_>) -> &str {
        &self.messages[key.at].role
    }

    fn is_asked(&self, key: &Key<'_>) -> bool {
        match key.is_reasoning() {
            true => REASONING.iter().any(|name| self.asked.has(key.at, name)),
            false => self.asked.has(key.at, key.name),
        }
    }

    /// Whether a key is known to be read: by an earlier conversation, or since the text has the reasoning, as it is or in JSON. Short ones may be there by chance.
    fn is_known(&self, key: &Key<'_>, text: &str) -> bool {
        if !key.is_reasoning() {
            return self.template.read_keys().has(self.role_of(key), key.name);
        }
        key.value.as_str().map(str::trim).filter(|own| own.len() >= REASONING_BYTES_MIN).is_some_and(|own| {
            let quoted = serde_json::to_string(own).unwrap_or_default();
            text.contains(own) || text.contains(quoted.trim_matches('"'))
        })
    }

    /// Whether the text is the same without some fields, in the order of their messages. A template that fails without them reads them.
    fn is_same_without(&self, text: &str, out: &[Key<'_>]) -> bool {
        let mut messages = self.messages.to_vec();
        for keys in out.chunk_by(|one, other| one.at == other.at) {
            messages[keys[0].at]
                .fields
                .retain(|(name, value)| !keys.iter().any(|key| key.is_of(name, value)));
        }
        self.rendered(&messages, false).is_ok_and(|rendered| rendered.text == text)
    }
}

/// A field of a message.
struct Key<'a> {
    /// The message's index.
    at: usize,
    name: &'a str,
    value: &'a Value,
}

impl Key<'_> {
    /// Whether it is reasoning, which has several names.
    fn is_reasoning(&self) -> bool {
        REASONING.contains(&self.name)
    }

    /// Returns the note on a key that a template asks for and does not print: templates that read reasoning drop it from earlier turns.
    fn unread(&self) -> Note {
        if self.is_reasoning() { Note::OmittedReasoning } else { Note::UnreadKeys }
    }

    fn is_of(&self, name: &str, value: &Value) -> bool {
        self.name == name || self.is_reasoning() && REASONING.contains(&name) && self.value == value
    }
}

/// Returns for each message whether a text has its content, but for blanks around it. A template may also print a content before the last one.
fn found(messages: &[Message], text: &str) -> Vec<bool> {
    let mut from = 0;
    let is_found = move |message: &Message| {
        let content = message.content.trim();
        match text[from..].find(content) {
            Some(at) => from += at + content.len(),
            None => return text.contains(content),
        }
        true
    };
    messages.iter().map(is_found).collect()
}

/// Whether the last text that is trained on ends with its answer, and no token that the tokenizer has `added` behind it; bytes have none.
fn is_endless(messages: &[Message], trained: &str, added: &[String]) -> bool {
    let Some(answer) = messages.iter().rfind(|message| message.is_scored()) else { return false };
    let answer = answer.content.trim_end();
    let tail = answer.char_indices().rev().take(TAIL_CHARACTERS).last().map_or("", |(at, _)| &answer[at..]);
    // Some answers have their end token.
    if tail.trim().is_empty() || tail.ends_with('>') {
        return false;
    }
    if trained.trim_end().ends_with(tail) {
        return true;
    }
    let is_end = |behind: &str| {
        let begins = |token: &String| !token.trim().is_empty() && behind.starts_with(token.trim());
        added.is_empty() || added.iter().any(begins)
    };
    // A short answer may also be in its end token, and a repetitive one overlap itself.
    let mut places =
        trained.rmatch_indices(tail).map(|(at, _)| trained[at + tail.len()..].trim_start()).peekable();
    places.peek().is_some() && !places.any(is_end)
}
