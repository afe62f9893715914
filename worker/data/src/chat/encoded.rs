//! The tokens of a conversation, and those to train on.

use std::ops::Range;

use longhaul_common::config::TrainOn;

use super::arguments::parsed;
use super::conversation::Conversation;
use super::spans::{Chatted, Marked};
use super::traced::Asked;
use super::{Chat, Tokenizer};
use crate::notes::{Note, Notes};

/// A tokenised conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<u32>,
    /// For each token, whether it is trained on.
    pub(crate) trained: Vec<bool>,
    pub(super) turns: u64,
    pub(crate) notes: Notes,
}

impl Chat {
    /// Tokenises a conversation. Of an assistant's text, exactly the tokens that overlap it are trained on, as in transformers'
    /// `apply_chat_template(…, return_assistant_tokens_mask=True)`.
    ///
    /// # Errors
    /// The cause, with the remedy.
    pub(super) fn encode(
        &self,
        conversation: &Conversation,
        tokenizer: &Tokenizer,
    ) -> Result<Encoded, String> {
        let mut notes = Notes::default();
        let (text, spans) = match conversation {
            Conversation::Pair { prompt, completion } => {
                notes.note(Note::BarePairs, u64::from(self.around > 0), String::new);
                let is_unused = self.is_named && self.template.is_some();
                notes.note(Note::UnusedTemplate, u64::from(is_unused), String::new);
                self.pair(prompt, completion)?
            }
            Conversation::Messages(messages, extras) => {
                let template = self.template.as_ref().ok_or("there is no chat template")?;
                let template = template.of(extras)?;
                let is_unread = |name: &str| !template.undeclared().any(|own| own == name);
                let unread = extras.variables().filter(|(name, _)| is_unread(name));
                unread.for_each(|(name, _)| notes.name(Note::UnreadVariables, name));
                let chatted = Chatted { template, messages, extras, asked: Asked::default() };
                let parsed = parsed(&chatted, &mut notes);
                let chatted = Chatted { messages: parsed.as_deref().unwrap_or(messages), ..chatted };
                chatted.check_calls()?;
                let (text, spans) = match self.train_on {
                    TrainOn::Assistant => chatted.of_assistant()?,
                    TrainOn::All => chatted.of_all()?,
                };
                notes.add(&self.notes_on(&chatted, &text, &spans));
                (text, spans)
            }
        };
        let places = tokenizer.encode_with_places(&text)?;
        if let Conversation::Pair { prompt, completion } = conversation {
            let end = self.end.as_deref().unwrap_or_default();
            let content = completion.strip_suffix(end).unwrap_or(completion);
            note_boundary(&places, prompt.len()..prompt.len() + content.len(), &text, &mut notes);
        }
        let trained = marked(places.iter().map(|(_, place)| place), &spans);
        let tokens = places.iter().map(|(token, _)| *token).collect();
        Ok(Encoded { tokens, trained, turns: conversation.turns(), notes })
    }

    fn pair(&self, prompt: &str, completion: &str) -> Result<Marked, String> {
        let end = self.end.as_deref().ok_or(
            "no tokenizer_config.json beside the tokenizer names an eos_token to end its completion: say data.separator",
        )?;
        // As TRL, which ends no text twice.
        let end = if completion.ends_with(end) { "" } else { end };
        let text = [prompt, completion, end].concat();
        let start = if self.train_on == TrainOn::All { 0 } else { prompt.len() };
        let span = start..text.len();
        Ok((text, vec![span]))
    }
}

/// Notes a completion at `content` in a text that begins within a token, or has all of its tokens where nothing predicts them.
fn note_boundary(places: &[(u32, Range<usize>)], content: Range<usize>, text: &str, notes: &mut Notes) {
    if text[content.clone()].trim().is_empty() {
        return;
    }
    let is_across =
        |(_, place): &(u32, Range<usize>)| place.start < content.start && place.end > content.start;
    notes.note(Note::JoinedPairs, u64::from(places.iter().any(is_across)), String::new);
    let is_of_it = |(_, place): &(u32, Range<usize>)| place.start < content.end && place.end > content.start;
    let is_lost = !places.iter().skip(1).any(is_of_it);
    notes.note(Note::LostCompletions, u64::from(is_lost), String::new);
}

/// Returns for each token's place whether it overlaps a span. Both are in order.
fn marked<'a>(places: impl Iterator<Item = &'a Range<usize>>, spans: &[Range<usize>]) -> Vec<bool> {
    let mut spans = spans.iter().peekable();
    places
        .map(|place| {
            while spans.next_if(|span| place.start >= span.end).is_some() {}
            spans.peek().is_some_and(|span| place.end > span.start)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_overlap_a_span_are_marked() {
        let places = [0..2, 2..3, 3..3, 3..6, 6..9, 9..9];
        for (spans, expected) in [
            (&[][..], [0, 0, 0, 0, 0, 0]),
            (&[(0, 9)], [1, 1, 1, 1, 1, 0]),
            (&[(2, 3)], [0, 1, 0, 0, 0, 0]),
            (&[(1, 2), (4, 5)], [1, 0, 0, 1, 0, 0]),
            (&[(3, 3)], [0, 0, 0, 0, 0, 0]),
            (&[(5, 7)], [0, 0, 0, 1, 1, 0]),
        ] {
            let spans: Vec<Range<usize>> = spans.iter().map(|(start, end)| *start..*end).collect();
            let found: Vec<u8> = marked(places.iter(), &spans).into_iter().map(u8::from).collect();
            assert_eq!(found, expected, "{spans:?}");
        }
    }
}
