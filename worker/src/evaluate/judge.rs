//! Scores of a model on questions and texts.

use anyhow::{Context, Result};
use longhaul_data::tasks::{
    Answer, Choice, Encoder, HeldOutFile, Item, Question, ScoredTokens, Share, TaskError, TaskFile,
    WholeText, compare,
};
use longhaul_data::{Detokenizer, HeldOutChat};
use longhaul_engine::{Generator, Sampling, Scored};

use super::outcome::{Measure, Outcome, Scores};
use super::progress::Progress;

/// Questions scored between two looks at the signal: several batches of a small model's context.
const QUESTIONS_AT_ONCE: usize = 32;
/// Tokens of a text scored between two.
const TOKENS_AT_ONCE: usize = 1 << 14;

/// Returns whether to stop.
pub type Stopped<'a> = &'a dyn Fn() -> bool;

/// A model with all that its evaluation needs.
#[derive(Debug)]
pub struct Judge<'a> {
    /// The model.
    pub generator: Generator,
    /// Tokens and templates.
    pub reading: &'a Reading,
    /// Whether progress is shown.
    pub shows: bool,
}

/// Texts to tokens and back.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Texts to tokens.
    pub encoder: Encoder,
    /// The chat template of conversations; `None`: there are none.
    pub chat: Option<HeldOutChat>,
    /// Tokens that end a generated answer.
    pub ends: Vec<u32>,
    /// Most tokens of a generated answer.
    pub answer_tokens: usize,
}

impl Judge<'_> {
    /// Scores the questions of a file, until it is to stop.
    ///
    /// # Errors
    /// A question cannot be tokenised or scored; or libtorch fails.
    pub fn task(&self, file: &TaskFile, stopped: Stopped<'_>) -> Result<Outcome> {
        let [mut acc, mut norm] = [Share::default(); 2];
        let (mut done, mut cut) = (0, 0);
        let room = self.answer_room();
        let has_answers = file.questions.iter().any(|question| matches!(question.item, Item::Answer(_)));
        if has_answers && room < self.reading.answer_tokens {
            tracing::warn!(
                "answers end after {room} tokens, half the model's context, and not after --tokens"
            );
        }
        let mut progress = self.shows.then(|| Progress::new(&file.path, "questions", file.questions.len()));
        let at_once = if file.kind.generates() { 1 } else { QUESTIONS_AT_ONCE };
        for questions in file.questions.chunks(at_once).take_while(|_| !stopped()) {
            for judged in self.questions(file, questions)? {
                acc.add(judged.right[0]);
                norm.add(judged.right[1]);
                cut += usize::from(judged.is_cut);
            }
            done += questions.len();
            progress.iter_mut().for_each(|progress| progress.show(done));
        }
        let names = file.kind.measures();
        let measures =
            names.iter().zip([acc, norm]).map(|(name, share)| Measure { name, shares: vec![share] });
        let scores = Scores::Shares { kind: file.kind, measures: measures.collect(), few_shot: file.shots() };
        Ok(Outcome { scores, files: vec![file.path.clone()], done, all: file.questions.len(), cut })
    }

    /// Scores the texts of a file. Notes on them go to the log.
    ///
    /// # Errors
    /// As for questions.
    pub fn text(&self, file: &HeldOutFile, stopped: Stopped<'_>) -> Result<Outcome> {
        let (mut nats, mut tokens, mut bytes, mut done, mut read) = (0.0, 0, Some(0), 0, 0);
        let all = file.documents.iter().map(|document| document.content.bytes()).sum();
        let mut notes = file.notes.clone();
        let mut progress = self.shows.then(|| Progress::new(&file.path, "bytes", all));
        for document in &file.documents {
            let refused = |reason| TaskError::Question { place: file.place(document), reason };
            let whole =
                self.reading.encoder.whole(&document.content, self.reading.chat.as_ref()).map_err(refused)?;
            notes.add(&whole.notes);
            let length = document.content.bytes();
            let far = |share: f64| {
                let done = read + (length as f64 * share) as usize;
                progress.iter_mut().for_each(|progress| progress.show(done));
            };
            let Some(logs) = self.likelihoods(&whole, far, stopped)? else { break };
            let counted = logs.iter().zip(&whole.counted).filter(|(_, counts)| **counts);
            nats -= counted.map(|(log, _)| f64::from(*log)).sum::<f64>();
            tokens += whole.counted.iter().filter(|counts| **counts).count();
            bytes = bytes.zip(whole.bytes).map(|(all, own)| all + own);
            read += length;
            done += 1;
        }
        let [columns, others] = notes.columns_and_others();
        if !columns.are_none() {
            tracing::info!(file = %file.path.display(), "{columns}");
        }
        if !others.are_none() {
            tracing::warn!(file = %file.path.display(), "{others}");
        }
        let scores = Scores::Text { tokens, bytes, nats };
        Ok(Outcome { scores, files: vec![file.path.clone()], done, all: file.documents.len(), cut: 0 })
    }

    /// Returns the log-probability of each scored token of a text; `None`: it was to stop. `far` takes the share that is done.
    fn likelihoods(
        &self,
        text: &WholeText,
        mut far: impl FnMut(f64),
        stopped: Stopped<'_>,
    ) -> Result<Option<Vec<f32>>> {
        let at_once = (TOKENS_AT_ONCE / self.generator.context().max(1)).max(1);
        let (mut logs, mut scored) = (Vec::with_capacity(text.counted.len()), 0);
        for windows in text.windows.chunks(at_once) {
            if stopped() {
                return Ok(None);
            }
            let found =
                self.generator.token_likelihoods(&windows.iter().map(scored_of).collect::<Vec<_>>())?;
            logs.extend(found.iter().flatten().map(|token| token.log));
            scored += windows.len();
            far(scored as f64 / text.windows.len() as f64);
        }
        Ok((!stopped()).then_some(logs))
    }

    fn questions(&self, file: &TaskFile, questions: &[Question]) -> Result<Vec<Judged>> {
        let refused = |question: &Question| {
            let place = file.place(question);
            move |reason| TaskError::Question { place, reason }
        };
        let mut choices: Vec<(&Choice, Vec<ScoredTokens>)> = Vec::new();
        let mut judged = Vec::new();
        for question in questions {
            let before = file.before(question);
            match &question.item {
                Item::Choice(choice) => {
                    let pairs = choice.pairs.iter().map(|pair| self.reading.encoder.pair(&before, pair));
                    let pairs = pairs.collect::<Result<_, _>>().map_err(refused(question))?;
                    choices.push((choice, pairs));
                }
                Item::Answer(answer) => {
                    let room = self.answer_room();
                    let prompt =
                        self.reading.encoder.prompt(&[before.as_str(), &answer.prompt].concat(), room);
                    let (prompt, is_cut) = prompt.map_err(refused(question))?;
                    let said = self.answer(&prompt, answer, room).with_context(|| file.place(question))?;
                    let found = compare(file.kind, answer, &said);
                    let right = [found.is_exact, found.is_found.unwrap_or(false)];
                    judged.push(Judged { right, is_cut });
                }
            }
        }
        let pairs: Vec<Scored<'_>> = choices.iter().flat_map(|(_, pairs)| pairs).map(scored_of).collect();
        let mut sums = self.generator.log_likelihoods(&pairs)?.into_iter().map(|likelihood| likelihood.sum);
        judged.extend(choices.iter().map(|(choice, pairs)| {
            let own: Vec<f64> = sums.by_ref().take(pairs.len()).collect();
            Judged { right: choice.judge(&own), is_cut: pairs.iter().any(|pair| pair.is_cut) }
        }));
        Ok(judged)
    }

    /// Returns the most tokens of an answer: a prompt keeps half the context.
    fn answer_room(&self) -> usize {
        self.reading.answer_tokens.min(self.generator.context() / 2)
    }

    /// Returns what the model answers, greedily: up to an end token, one of the answer's stops, or the most tokens.
    fn answer(&self, prompt: &[u32], answer: &Answer, room: usize) -> Result<String> {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let tokenizer = self.reading.encoder.tokenizer();
        let mut detokenizer = Detokenizer::after(tokenizer, prompt);
        let mut said = String::new();
        for token in self.generator.continuation(prompt, sampling)?.take(room.max(1)) {
            let token = token?;
            if self.reading.ends.contains(&token) {
                break;
            }
            said += &detokenizer.push(token).map_err(anyhow::Error::msg)?;
            if let Some(end) = first_stop(&said, answer.stops) {
                said.truncate(end);
                return Ok(said);
            }
        }
        said += &detokenizer.finish().map_err(anyhow::Error::msg)?;
        said.truncate(first_stop(&said, answer.stops).unwrap_or(said.len()));
        Ok(said)
    }
}

/// The judgement of a question.
struct Judged {
    /// By each measure.
    right: [bool; 2],
    /// Whether its text was cut to fit the context.
    is_cut: bool,
}

fn scored_of(tokens: &ScoredTokens) -> Scored<'_> {
    Scored { tokens: &tokens.tokens, from: tokens.from }
}

fn first_stop(text: &str, stops: &[&str]) -> Option<usize> {
    stops.iter().filter_map(|stop| text.find(stop)).min()
}
