//! Evaluation tasks in local files, and held-out texts: formats, prompts and scores, as lm-evaluation-harness (0.4) defines them. See `docs/tasks.md`.

mod answers;
mod choices;
mod encoding;
mod error;
mod few_shot;
mod fields;
mod file;
mod generated;
mod kind;
mod labelled;
mod labels;
mod score;
#[cfg(test)]
mod tests;
mod texts;
mod unread;
mod windows;

pub use answers::{Comparison, compare};
pub use encoding::{Encoder, ScoredTokens, WholeText};
pub use error::TaskError;
pub use file::{Question, TaskFile};
pub use labelled::{LabelledBatch, LabelledCounts, LabelledFile};
pub use longhaul_common::config::TaskKind;
pub use score::{Share, pooled_error};
pub use texts::{Content, Document, HeldOutFile};
pub use windows::{Window, windows};

/// What a question asks of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Which continuation is the likeliest.
    Choice(Choice),
    /// What it generates.
    Answer(Answer),
}

/// A question with several answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// For each answer, the scored text and the text before it.
    pub pairs: Vec<Pair>,
    /// Characters of each answer, the divisors of `acc_norm`.
    pub characters: Vec<usize>,
    /// Index of the right answer.
    pub right: usize,
}

/// A text whose likelihood is asked for, and the text before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The text before.
    pub context: String,
    /// The scored text.
    pub continuation: String,
}

/// A question whose answer is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text before the answer.
    pub prompt: String,
    /// The expected answer.
    pub expected: String,
    /// Texts before which the generated answer ends.
    pub stops: &'static [&'static str],
}
