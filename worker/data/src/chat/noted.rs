//! Notes on a conversation and its text.

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::Value;

use super::Chat;
use super::message::{CALLS, Message, REASONING};
use super::spans::Chatted;
use super::template::not_read;
use crate::notes::{Note, Notes};

/// Most names, and messages with reasoning, that are tried: each costs a rendering.
const TRIED_MAX: usize = 64;
/// Characters at the end of an answer by which it is found in the text.
const TAIL_CHARACTERS: usize = 32;

impl Chat {
    /// Returns the notes on a conversation with this text, of which `spans` are trained on.
    pub(super) fn notes_on(&self, chatted: &Chatted<'_>, text: &str, spans: &[Range<usize>]) -> Notes {
        let mut notes = Notes::default();
        omitted(chatted.messages, text).for_each(|role| notes.name(Note::OmittedTexts, role));
        for name in chatted.unread(text) {
            // Templates that read reasoning drop that of earlier turns.
            let is_reasoning = REASONING.contains(&name);
            notes.name(if is_reasoning { Note::OmittedReasoning } else { Note::UnreadKeys }, name);
        }
        let lacking = self.lacking.iter().filter(|name| text.contains(name.as_str()));
        lacking.for_each(|name| notes.name(Note::LackingTokens, name));
        let last = spans.last().map_or("", |span| &text[span.clone()]);
        notes.note(Note::EndlessAnswers, u64::from(is_endless(chatted.messages, last)), String::new);
        notes
    }
}

impl Chatted<'_> {
    /// Refuses calls of tools without which the text is the same.
    ///
    /// # Errors
    /// Names them.
    pub(super) fn check_calls(&self) -> Result<(), String> {
        let calls: BTreeSet<&str> = self.messages.iter().filter_map(Message::calls).collect();
        for name in calls {
            let text = self.rendered(self.messages, false)?.text;
            if self.is_same_without(&text, |_, (own, _)| own == name) {
                return Err(not_read(name));
            }
        }
        Ok(())
    }

    /// Returns the names of the messages' filled fields without which the text is the same, one for each. Reasoning has several names.
    fn unread(&self, text: &str) -> Vec<&str> {
        let all =
            || self.messages.iter().enumerate().flat_map(|(at, own)| own.beside().map(move |it| (at, it)));
        let is_other = |name: &str| !CALLS.contains(&name) && !REASONING.contains(&name);
        let names: BTreeSet<&str> = all().map(|(_, (name, _))| name).filter(|name| is_other(name)).collect();
        let is_unread = |name: &&str| self.is_same_without(text, |_, (own, _)| own == *name);
        let unread: BTreeSet<&str> = names.into_iter().take(TRIED_MAX).filter(is_unread).collect();
        let is_cut = |at: usize, reasoning: &Value| {
            self.is_same_without(text, |own, (name, value)| {
                own == at && REASONING.contains(&name) && value == reasoning
            })
        };
        let unread = all().filter(|(at, (name, value))| {
            unread.contains(name) || REASONING.contains(name) && *at < TRIED_MAX && is_cut(*at, value)
        });
        unread.map(|(_, (name, _))| name).collect()
    }

    /// Whether the text is the same without some fields. A template that fails without them reads them.
    fn is_same_without(&self, text: &str, is_out: impl Fn(usize, (&str, &Value)) -> bool) -> bool {
        let mut messages = self.messages.to_vec();
        for (at, message) in messages.iter_mut().enumerate() {
            message.fields.retain(|(name, value)| !is_out(at, (name.as_str(), value)));
        }
        self.rendered(&messages, false).is_ok_and(|rendered| rendered.text == text)
    }
}

/// Returns the roles of the messages whose content a template has not printed as it is, but for blanks around it: templates pass over roles that they do not know,
/// cut reasoning off, or print a message's calls alone.
fn omitted<'a>(messages: &'a [Message], text: &str) -> impl Iterator<Item = &'a str> {
    let mut from = 0;
    let is_omitted = move |message: &&Message| {
        let content = message.content.trim();
        // A template may also print a content before the last one.
        match text[from..].find(content) {
            Some(at) => from += at + content.len(),
            None => return !text.contains(content),
        }
        false
    };
    messages.iter().filter(is_omitted).map(|message| message.role.as_str())
}

/// Whether the last text that is trained on ends with its answer, and no token behind it.
fn is_endless(messages: &[Message], trained: &str) -> bool {
    let Some(answer) = messages.iter().rfind(|message| message.is_scored()) else { return false };
    let answer = answer.content.trim_end();
    let tail = answer.char_indices().rev().take(TAIL_CHARACTERS).last().map_or("", |(at, _)| &answer[at..]);
    // Some answers have their end token.
    !tail.trim().is_empty() && !tail.ends_with('>') && trained.trim_end().ends_with(tail)
}
