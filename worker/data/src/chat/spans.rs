//! The parts of a rendered conversation to train on.

use std::ops::Range;

use super::extras::Extras;
use super::message::{ASSISTANT, Message};
use super::template::{ChatTemplate, Rendered};
use super::traced::Asked;

/// The remedy for a template whose renderings do not tell messages apart.
const MARK_IT: &str = "copy the template, put `{% generation %}` and `{% endgeneration %}` around what the assistant writes, and name the copy in data.conversations.chat_template";
/// Characters by which the end of a prompt is found before an answer.
const PROMPT_END_CHARACTERS: usize = 8;
/// Noncharacters, which stand for another answer.
pub(super) const OTHERS: [char; 2] = ['\u{fdd2}', '\u{fdd3}'];

/// A text and the byte ranges in it.
pub(super) type Marked = (String, Vec<Range<usize>>);

/// A conversation to be rendered.
pub(super) struct Chatted<'a> {
    pub(super) template: &'a ChatTemplate,
    pub(super) messages: &'a [Message],
    pub(super) extras: &'a Extras,
    pub(super) asked: Asked,
}

impl Chatted<'_> {
    /// Returns its text, and the parts that messages of the assistant have.
    ///
    /// # Errors
    /// The cause, with the remedy.
    pub(super) fn of_assistant(&self) -> Result<Marked, String> {
        let messages = self.messages;
        let own: Vec<usize> = (0..messages.len()).filter(|at| messages[*at].role == ASSISTANT).collect();
        let is_trained = |at: &usize| messages[*at].is_trained != Some(false);
        if !own.iter().any(is_trained) {
            return Err("it has no message of the assistant to train on: leave it out, or say data.conversations.train_on = \"all\"".to_owned());
        }
        let Rendered { text, generated } = self.rendered(messages, false)?;
        if !self.template.has_generation() {
            let header = self.header()?;
            let span_of = |at: &usize| self.span_of(*at, &text, header.as_deref());
            let spans = own.iter().filter(|at| is_trained(at)).map(span_of);
            let spans = spans.collect::<Result<_, _>>()?;
            return Ok((text, spans));
        }
        let spans = if own.iter().all(is_trained) {
            generated
        } else {
            let counts = self.blocks_of(&own, &generated, &text)?;
            let owners = own.iter().zip(counts).flat_map(|(at, count)| std::iter::repeat_n(at, count));
            owners.zip(generated).filter(|(at, _)| is_trained(at)).map(|(_, span)| span).collect()
        };
        match spans.iter().all(Range::is_empty) {
            true => Err("the `{% generation %}` blocks of the chat template mark nothing of it: put them around what the assistant writes".to_owned()),
            false => Ok((text, spans)),
        }
    }

    /// Returns its text, and all of it but messages that are not to be trained on.
    ///
    /// # Errors
    /// The cause, with the remedy.
    pub(super) fn of_all(&self) -> Result<Marked, String> {
        let text = self.rendered(self.messages, false)?.text;
        let (mut spans, mut from) = (Vec::new(), 0);
        let is_out = |at: &usize| self.messages[*at].is_trained == Some(false);
        let header = if (0..self.messages.len()).any(|at| is_out(&at)) { self.header()? } else { None };
        for at in (0..self.messages.len()).filter(is_out) {
            let without = self.span_of(at, &text, header.as_deref())?;
            spans.push(from..without.start);
            from = without.end;
        }
        spans.push(from..text.len());
        spans.retain(|span| !span.is_empty());
        Ok((text, spans))
    }

    pub(super) fn rendered(&self, messages: &[Message], prompts: bool) -> Result<Rendered, String> {
        let values = messages.iter().enumerate().map(|(at, message)| self.asked.value(at, message));
        self.template.render_values(values.collect(), self.extras, prompts)
    }

    /// Returns the number of generation blocks of each message of the assistant: those that the text up to it has more than the text up to the one before.
    fn blocks_of(&self, own: &[usize], all: &[Range<usize>], text: &str) -> Result<Vec<usize>, String> {
        let (mut counts, mut before, mut are_stable) = (Vec::new(), 0, true);
        for at in own {
            let Rendered { text: through, generated } = self.rendered(&self.messages[..=*at], false)?;
            let end = generated.last().map_or(0, |block| block.end);
            are_stable &= all.starts_with(&generated) && text.get(..end) == through.get(..end);
            counts.push(generated.len().saturating_sub(before));
            before = generated.len();
        }
        if before == all.len() && (are_stable || counts.iter().all(|count| *count == 1)) {
            return Ok(counts);
        }
        let (blocks, count) = (all.len(), own.len());
        Err(format!(
            "some messages of the assistant are not to be trained on, and the template marks {blocks} texts for {count} messages, so that it is unknown whose they are: mark each message once"
        ))
    }

    /// Returns the header of answers: what the prompt for the first one adds. `None`: a prompt adds nothing.
    fn header(&self) -> Result<Option<String>, String> {
        let first = self.messages.iter().position(|message| message.role == ASSISTANT);
        let Some(first) = first.filter(|_| self.template.prompts()) else { return Ok(None) };
        let mut asked = self.messages[..first.max(1)].to_vec();
        if first == 0 {
            asked.push(Message::plain("user", OTHERS[0].to_string())?);
        }
        let [without, with] = [self.rendered(&asked, false)?.text, self.rendered(&asked, true)?.text];
        // A prompt that changes earlier text is no header: messages are told apart by prefixes.
        Ok(Some(with.strip_prefix(&without).unwrap_or(&with).to_owned()).filter(|header| !header.is_empty()))
    }

    /// Returns the place of a message in the text of all. An answer begins behind its header, or where another answer makes another text; another message
    /// begins where the text of those before it ends.
    fn span_of(&self, at: usize, text: &str, header: Option<&str>) -> Result<Range<usize>, String> {
        let (messages, place) = (self.messages, at + 1);
        let through = self.rendered(&messages[..=at], false)?.text;
        if !text.starts_with(&through) {
            return Err(format!(
                "the chat template does not tell where message {place} ends: its text depends on later messages; {MARK_IT}"
            ));
        }
        let is_answer = messages[at].role == ASSISTANT;
        let start = match (at, header) {
            (_, None) if is_answer => {
                let start = self.start_beside_another(at, &through)?;
                // Blanks behind the end of the prompt are the model's to write. Its begin may be another one.
                let prompt = self.rendered(&messages[..at], false).map(|before| before.text);
                let before = start.and_then(|start| through.get(..start)).unwrap_or_default().trim_end();
                let end = before.char_indices().rev().take(PROMPT_END_CHARACTERS).last();
                let end = end.map_or("", |(at, _)| &before[at..]);
                let is_its = !end.is_empty() && prompt.is_ok_and(|prompt| prompt.ends_with(end));
                if is_its { Some(before.len()) } else { start }
            }
            (0, Some(header)) if is_answer => {
                // The answer may have it too.
                let behind = self.start_beside_another(at, &through)?.unwrap_or_default();
                through[..behind].rfind(header).map(|found| found + header.len())
            }
            (0, _) => Some(0),
            _ => {
                let before = self.rendered(&messages[..at], is_answer)?.text;
                match header.filter(|header| is_answer && !before.ends_with(*header)) {
                    _ if !through.starts_with(&before) => None,
                    None => Some(before.len()),
                    // Its prompt is another one; the header may follow.
                    Some(header) => {
                        let behind = self.start_beside_another(at, &through)?.unwrap_or_default();
                        let between = through.get(before.len()..behind).unwrap_or_default();
                        Some(before.len() + between.rfind(header).map_or(0, |found| found + header.len()))
                    }
                }
            }
        };
        let Some(start) = start else {
            return Err(format!(
                "the chat template does not tell where message {place} begins: the text with it does not begin with that of the messages before it and the prompt; {MARK_IT}"
            ));
        };
        Ok(start..through.len())
    }

    /// Returns where another answer makes another text.
    fn start_beside_another(&self, at: usize, through: &str) -> Result<Option<usize>, String> {
        let unused = OTHERS.into_iter().find(|one| !through.contains(*one));
        let text = unused.ok_or("it has U+FDD2 and U+FDD3, which are no characters: take them out")?;
        let mut messages = self.messages[..at].to_vec();
        messages.push(Message::plain(ASSISTANT, text.to_string())?);
        let other = self.rendered(&messages, false)?.text;
        let mut same = through.char_indices().zip(other.chars());
        Ok(same.find(|((_, own), other)| own != other).map(|((place, _), _)| place))
    }
}
