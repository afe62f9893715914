//! `worker evaluate`

use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args};
use longhaul_data::tasks::TaskKind;

use super::{CheckpointArgs, ComputeArgs};

/// `worker evaluate`
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("files").args(["task", "text", "labelled"]).required(true).multiple(true))]
pub struct EvaluateArgs {
    /// The checkpoint.
    #[command(flatten)]
    pub model: CheckpointArgs,
    /// Files of questions: JSON lines, Parquet, Arrow or CSV. The columns tell the kind, or it is said: arc, hellaswag, mmlu, piqa, winogrande, gsm8k, exact-match.
    #[arg(long, value_name = "[KIND=]FILE", num_args = 1..)]
    pub task: Vec<TaskName>,
    /// Files of held-out text, for perplexity: plain text, or a column of JSON lines, Parquet, Arrow or CSV; or conversations, of which the assistant's words count.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub text: Vec<PathBuf>,
    /// Files of labelled texts, for a classifier's accuracy: JSON lines, CSV, TSV, Parquet or Arrow. A label is a name of the model's `id2label`, or its number.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub labelled: Vec<PathBuf>,
    /// The column of the text in files of `--text` or `--labelled` that have columns. In labelled tables without a head, all columns are numbers, from 1.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_column: String,
    /// The column of the second text in files of `--labelled`, for pairs.
    #[arg(long, value_name = "NAME", requires = "labelled")]
    pub text_pair_column: Option<String>,
    /// The column of the label in files of `--labelled`.
    #[arg(long, value_name = "NAME", default_value = "label", requires = "labelled")]
    pub label_column: String,
    /// Most tokens of a labelled text; longer ones lose their end. Default: the model's context.
    #[arg(long, value_name = "COUNT", requires = "labelled", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub sequence_length: Option<u32>,
    /// A chat template's file, for conversations. Default: that of the model.
    #[arg(long, value_name = "FILE", requires = "text")]
    pub chat_template: Option<PathBuf>,
    /// The day for chat templates that ask for it, as `2024-07-26`.
    #[arg(long, value_name = "DAY", requires = "text")]
    pub date: Option<String>,
    /// Evaluate only the first questions or texts of each file.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Put so many solved questions before each question: the first ones of its kind, and subject, in `--few-shot-from`.
    #[arg(long, value_name = "COUNT", requires = "few_shot_from", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub few_shot: Option<u32>,
    /// Files of solved questions, as for `--task`.
    #[arg(long, value_name = "[KIND=]FILE", num_args = 1.., requires = "few_shot")]
    pub few_shot_from: Vec<TaskName>,
    /// Most tokens of a generated answer.
    #[arg(long, value_name = "COUNT", default_value_t = 256, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub tokens: u32,
    /// Print each result as a line of JSON.
    #[arg(long)]
    pub json: bool,
    /// The device.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// A file of questions, with its kind if it is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Its kind.
    pub kind: Option<TaskKind>,
    /// The file.
    pub file: PathBuf,
}

impl FromStr for TaskName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = || Self { kind: None, file: text.into() };
        let Some((name, file)) = text.split_once('=') else { return Ok(plain()) };
        match name.parse() {
            Ok(kind) => Ok(Self { kind: Some(kind), file: file.into() }),
            // A name of a file may have the sign too.
            Err(()) if PathBuf::from(text).exists() => Ok(plain()),
            Err(()) => {
                let known: Vec<&str> = TaskKind::ALL.iter().map(|kind| kind.name()).collect();
                Err(format!("{name:?} is no kind of task: take one of {}", known.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_stands_before_the_file_or_is_left_to_its_columns() {
        let name = |kind, file: &str| Ok(TaskName { kind, file: file.into() });
        assert_eq!("a/test.jsonl".parse(), name(None, "a/test.jsonl"));
        assert_eq!("ARC=a=b.jsonl".parse(), name(Some(TaskKind::Arc), "a=b.jsonl"));
        assert_eq!("exact_match=x.csv".parse(), name(Some(TaskKind::ExactMatch), "x.csv"));
        let message = "arcs=x.jsonl".parse::<TaskName>().unwrap_err();
        assert!(message.contains("\"arcs\" is no kind") && message.contains("winogrande"), "{message}");
    }
}
