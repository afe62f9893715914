//! The tokens of a conversation, and those to train on.

use std::ops::Range;

use longhaul_common::config::TrainOn;

use super::conversation::{ASSISTANT, Conversation, Message};
use super::template::{ChatTemplate, Rendered};
use super::{Chat, Tokenizer};

/// The remedy for a template whose renderings do not tell messages apart.
const MARK_IT: &str = "copy the template, put `{% generation %}` and `{% endgeneration %}` around what the assistant writes, and name the copy in data.conversations.chat_template";

/// A tokenised conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) tokens: Vec<u32>,
    /// For each token, whether it is trained on.
    pub(super) trained: Vec<bool>,
    pub(super) turns: u64,
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
        let (text, spans) = match conversation {
            Conversation::Pair { prompt, completion } => self.pair(prompt, completion)?,
            Conversation::Messages(messages) => {
                let template = self.template.as_ref().ok_or("there is no chat template")?;
                match self.train_on {
                    TrainOn::Assistant => of_assistant(template, messages)?,
                    TrainOn::All => of_all(template, messages)?,
                }
            }
        };
        let places = tokenizer.encode_with_places(&text)?;
        let trained = marked(places.iter().map(|(_, place)| place), &spans);
        let tokens = places.iter().map(|(token, _)| *token).collect();
        Ok(Encoded { tokens, trained, turns: conversation.turns() })
    }

    fn pair(&self, prompt: &str, completion: &str) -> Result<(String, Vec<Range<usize>>), String> {
        let end = self.end.as_deref().ok_or(
            "no tokenizer_config.json beside the tokenizer names an eos_token to end its completion: say data.separator",
        )?;
        let text = [prompt, completion, end].concat();
        let start = if self.train_on == TrainOn::All { 0 } else { prompt.len() };
        let span = start..text.len();
        Ok((text, vec![span]))
    }
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

fn of_assistant(
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<(String, Vec<Range<usize>>), String> {
    let own: Vec<usize> = (0..messages.len()).filter(|at| messages[*at].role == ASSISTANT).collect();
    let is_trained = |at: &usize| messages[*at].is_trained != Some(false);
    if !own.iter().any(is_trained) {
        return Err("it has no message of the assistant to train on: leave it out, or say data.conversations.train_on = \"all\"".to_owned());
    }
    let Rendered { text, generated } = template.render(messages, false)?;
    if !template.has_generation() {
        let spans = own.iter().filter(|at| is_trained(at)).map(|at| span_of(template, messages, *at, &text));
        let spans = spans.collect::<Result<_, _>>()?;
        return Ok((text, spans));
    }
    let spans = if own.iter().all(is_trained) {
        generated
    } else if generated.len() == own.len() {
        own.iter().zip(generated).filter(|(at, _)| is_trained(at)).map(|(_, span)| span).collect()
    } else {
        let (blocks, count) = (generated.len(), own.len());
        return Err(format!(
            "some messages of the assistant are not to be trained on, and the template marks {blocks} texts for {count} messages: mark each message once"
        ));
    };
    match spans.iter().all(Range::is_empty) {
        true => Err("the `{% generation %}` blocks of the chat template mark nothing of it: put them around what the assistant writes".to_owned()),
        false => Ok((text, spans)),
    }
}

fn of_all(template: &ChatTemplate, messages: &[Message]) -> Result<(String, Vec<Range<usize>>), String> {
    let text = template.render(messages, false)?.text;
    let (mut spans, mut from) = (Vec::new(), 0);
    for at in (0..messages.len()).filter(|at| messages[*at].is_trained == Some(false)) {
        let without = span_of(template, messages, at, &text)?;
        spans.push(from..without.start);
        from = without.end;
    }
    spans.push(from..text.len());
    spans.retain(|span| !span.is_empty());
    Ok((text, spans))
}

/// Returns the place of a message in the text of all: the difference of the text up to it and the text of those before it, with the prompt for an answer if
/// it is one.
fn span_of(
    template: &ChatTemplate,
    messages: &[Message],
    at: usize,
    text: &str,
) -> Result<Range<usize>, String> {
    let before = match at {
        0 => String::new(),
        _ => template.render(&messages[..at], messages[at].role == ASSISTANT)?.text,
    };
    let through = template.render(&messages[..=at], false)?.text;
    let place = at + 1;
    if !through.starts_with(&before) {
        return Err(format!(
            "the chat template does not tell where message {place} begins: the text with it does not begin with that of the messages before it and the prompt; {MARK_IT}"
        ));
    }
    if !text.starts_with(&through) {
        return Err(format!(
            "the chat template does not tell where message {place} ends: its text depends on later messages; {MARK_IT}"
        ));
    }
    Ok(before.len()..through.len())
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
