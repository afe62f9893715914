//! Results, for people and as JSON.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::fmt;
use std::path::PathBuf;

use indicatif::HumanCount;
use longhaul_data::counted::{counted, were};
use longhaul_data::tasks::{Share, TaskKind, pooled_error};
use longhaul_proto::control::message::TaskScore;
use serde_json::{Map, Value, json};

/// The result of a file, or of all files of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The scores.
    pub scores: Scores,
    /// The files.
    pub files: Vec<PathBuf>,
    /// Questions or texts scored.
    pub done: usize,
    /// Questions or texts to score.
    pub all: usize,
    /// Questions cut on the left to fit the context, or labelled texts that lost their end.
    pub cut: usize,
}

/// Scores of questions or of texts.
#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// Of questions.
    Shares {
        /// Their kind.
        kind: TaskKind,
        /// Names and values.
        measures: Vec<Measure>,
        /// Solved questions before each question.
        few_shot: usize,
    },
    /// Of texts.
    Text {
        /// Scored tokens.
        tokens: usize,
        /// Their bytes; `None`: unknown, for conversations.
        bytes: Option<usize>,
        /// Sum of their cross entropies, in nats.
        nats: f64,
    },
    /// Of labelled texts.
    Classes {
        /// Those whose class is the likeliest.
        right: Share,
        /// Sum of the texts' cross entropies, in nats.
        nats: f64,
    },
}

/// A share of right answers, with its name, and the shares of single files.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Its name in lm-evaluation-harness.
    pub name: &'static str,
    /// One for each file.
    pub shares: Vec<Share>,
}

impl Measure {
    fn total(&self) -> Share {
        let mut total = Share::default();
        self.shares.iter().for_each(|share| total.extend(*share));
        total
    }

    /// Returns the mean and its standard error: that of the sample, or of the pooled samples of several files.
    fn value(&self) -> (f64, Option<f64>) {
        let total = self.total();
        let error = if self.shares.len() > 1 { pooled_error(&self.shares) } else { total.standard_error() };
        (total.mean(), error)
    }
}

impl Outcome {
    /// Whether all was scored.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.done == self.all
    }

    /// Returns right answers and questions, as a member reports them; `None` of texts.
    #[must_use]
    pub fn score(&self) -> Option<TaskScore> {
        let Scores::Shares { kind, measures, .. } = &self.scores else { return None };
        let mut right = [0; 2];
        for (right, measure) in right.iter_mut().zip(measures) {
            *right = u32::try_from(measure.total().hits).unwrap_or(u32::MAX);
        }
        Some(TaskScore { kind: *kind, right, questions: u32::try_from(self.done).unwrap_or(u32::MAX) })
    }

    /// Returns the results of all files of each kind that has several.
    #[must_use]
    pub fn of_kinds(all: &[Self]) -> Vec<Self> {
        let mut kinds = BTreeMap::<TaskKind, Self>::new();
        for outcome in all {
            let Scores::Shares { kind, measures, .. } = &outcome.scores else { continue };
            let Some(total) = kinds.get_mut(kind) else {
                kinds.insert(*kind, outcome.clone());
                continue;
            };
            total.files.extend_from_slice(&outcome.files);
            total.done += outcome.done;
            total.all += outcome.all;
            total.cut += outcome.cut;
            if let Scores::Shares { measures: totals, .. } = &mut total.scores {
                for (total, own) in totals.iter_mut().zip(measures) {
                    total.shares.extend_from_slice(&own.shares);
                }
            }
        }
        kinds.into_values().filter(|total| total.files.len() > 1).collect()
    }

    /// Returns it as one line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let mut line = Map::new();
        let mut put = |name: &str, value: Value| line.insert(name.to_owned(), value);
        match &self.files[..] {
            [file] => put("file", json!(file.display().to_string())),
            files => put("files", json!(files.len())),
        };
        match &self.scores {
            Scores::Shares { kind, measures, few_shot } => {
                put("task", json!(kind.name()));
                put("questions", json!(self.done));
                put("questions_cut", json!(self.cut));
                put("few_shot", json!(few_shot));
                for measure in measures {
                    let (mean, error) = measure.value();
                    put(measure.name, json!(mean));
                    put(&format!("{}_stderr", measure.name), json!(error));
                }
            }
            Scores::Text { tokens, bytes, nats } => {
                put("task", json!("text"));
                put("texts", json!(self.done));
                put("tokens", json!(tokens));
                put("bytes", json!(bytes));
                let loss = nats / *tokens as f64;
                put("loss", json!(loss));
                put("perplexity", json!(loss.exp()));
                put("bits_per_byte", json!(bits_per_byte(*bytes, *nats)));
            }
            Scores::Classes { right, nats } => {
                put("task", json!("labelled"));
                put("texts", json!(self.done));
                put("texts_cut", json!(self.cut));
                put("loss", json!(nats / right.count as f64));
                put("accuracy", json!(right.mean()));
                put("accuracy_stderr", json!(right.standard_error()));
            }
        }
        if !self.is_whole() {
            put("stopped_before", json!(self.all - self.done));
        }
        Value::Object(line).to_string()
    }
}

fn bits_per_byte(bytes: Option<usize>, nats: f64) -> Option<f64> {
    bytes.filter(|bytes| *bytes > 0).map(|bytes| nats / LN_2 / bytes as f64)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = match &self.files[..] {
            [file] => file.display().to_string(),
            files => format!("all {} files", files.len()),
        };
        match &self.scores {
            Scores::Shares { kind, measures, few_shot } => {
                write!(f, "{kind}, {files}: {}", counted(self.done as u64, "question"))?;
                if *few_shot > 0 {
                    write!(f, ", {few_shot}-shot")?;
                }
                for measure in measures.iter().filter(|_| self.done > 0) {
                    let (mean, error) = measure.value();
                    write!(f, ", {} {mean:.4}", measure.name)?;
                    if let Some(error) = error {
                        write!(f, " ± {error:.4}")?;
                    }
                }
            }
            Scores::Text { tokens, bytes, nats } => {
                write!(f, "text, {files}: {}, ", counted(self.done as u64, "text"))?;
                write!(f, "{}", counted(*tokens as u64, "token"))?;
                if *tokens > 0 {
                    let loss = nats / *tokens as f64;
                    write!(f, ", loss {loss:.4} nats a token, perplexity {:.4}", loss.exp())?;
                }
                if let Some(bits) = bits_per_byte(*bytes, *nats) {
                    write!(f, ", {bits:.4} bits a byte")?;
                }
            }
            Scores::Classes { right, nats } => {
                write!(f, "labelled, {files}: {}", counted(self.done as u64, "text"))?;
                if right.count > 0 {
                    let loss = nats / right.count as f64;
                    write!(f, ", loss {loss:.4} nats a text, accuracy {:.4}", right.mean())?;
                }
                if let Some(error) = right.standard_error() {
                    write!(f, " ± {error:.4}")?;
                }
            }
        }
        let (what, end) = match self.scores {
            Scores::Shares { .. } => ("question", "the context and cut on the left"),
            Scores::Text { .. } | Scores::Classes { .. } => ("text", "a sequence and cut at the end"),
        };
        if self.cut > 0 {
            let (cut, verb) = (counted(self.cut as u64, what), were(self.cut as u64));
            write!(f, "; {cut} {verb} longer than {end}")?;
        }
        if !self.is_whole() {
            let (done, all) = (HumanCount(self.done as u64), HumanCount(self.all as u64));
            write!(f, "; stopped after {done} of {all} {what}s")?;
        }
        Ok(())
    }
}
