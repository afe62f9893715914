//! Control tokens that texts spell.

use std::collections::HashMap;

use super::Tokenizer;
use super::notes::{Note, Notes};

/// Control tokens of well-known tokenizers that texts hardly have for another reason.
const KNOWN: [&str; 34] = [
    "</s>",
    "<bos>",
    "<eos>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|startoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "[SEP]",
    "<s>",
    "<pad>",
    "<unk>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "[gMASK]",
    "<sop>",
    "<BOS_TOKEN>",
    "<EOS_TOKEN>",
];
/// Longest one that is looked for, in bytes.
const BYTES_MAX: usize = 64;
/// Most that are looked for in a template: models have some tens.
pub(super) const MARKERS_MAX: usize = 256;

/// Names of control tokens with their brackets, and the note on a text with one.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlTokens(HashMap<String, Note>);

impl ControlTokens {
    /// Returns those of a tokenizer, and known ones that it has no token for. The separator has a note of its own.
    pub(super) fn of(tokenizer: &Tokenizer, separator: &str) -> Self {
        let own = tokenizer.special().into_iter().map(|name| (name, Note::ControlTokens));
        let known = KNOWN.into_iter().map(|name| {
            let note = if tokenizer.has_token(name) { Note::ControlTokens } else { Note::OtherControlTokens };
            (name.to_owned(), note)
        });
        Self(known.chain(own).filter(|(name, _)| name != separator.trim()).collect())
    }

    /// Notes each that a text has, once.
    pub(super) fn note(&self, text: &str, notes: &mut Notes) {
        let mut found: Vec<(&str, Note)> = Vec::new();
        for at in memchr::memchr2_iter(b'<', b'[', text.as_bytes()) {
            if let Some((name, note)) = bracketed(text, at).and_then(|name| self.0.get_key_value(name))
                && !found.contains(&(name, *note))
            {
                found.push((name, *note));
            }
        }
        found.into_iter().for_each(|(name, note)| notes.name(note, name));
    }
}

/// Returns the text from the opening bracket at a place to the next closing one.
fn bracketed(text: &str, at: usize) -> Option<&str> {
    let rest = &text.as_bytes()[at..text.len().min(at + BYTES_MAX)];
    let end = memchr::memchr(if rest[0] == b'<' { b'>' } else { b']' }, rest)?;
    Some(&text[at..=at + end])
}

/// Returns the texts between brackets of a chat template that look like control tokens, each once, up to [`MARKERS_MAX`]: `<|…|>`, `<…_of_turn>`, and those of
/// [`KNOWN`].
pub(super) fn markers(template: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for at in memchr::memchr2_iter(b'<', b'[', template.as_bytes()) {
        let Some(name) = bracketed(template, at) else { continue };
        let is_plain = |one: char| one.is_alphanumeric() || "|｜▁_-/<>".contains(one);
        let is_piped = (name.starts_with("<|") && name.ends_with("|>"))
            || (name.starts_with("<｜") && name.ends_with("｜>"));
        let is_marker = name.len() > "<||>".len() && is_piped || name.ends_with("_of_turn>");
        if (is_marker && name.chars().all(is_plain) || KNOWN.contains(&name)) && !found.contains(&name) {
            found.push(name);
            if found.len() == MARKERS_MAX {
                break;
            }
        }
    }
    found
}
