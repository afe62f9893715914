//! The files to evaluate.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use longhaul_checkpoint::DescribedModel;
use longhaul_common::config::{ClassificationConfig, Column, TooLong};
use longhaul_data::tasks::{Content, HeldOutFile, LabelledFile, TaskFile};

use crate::cli::{EvaluateArgs, TaskName};

/// All questions and texts, in memory.
pub(super) struct Inputs {
    pub(super) texts: Vec<HeldOutFile>,
    pub(super) tasks: Vec<TaskFile>,
    pub(super) labelled: Vec<LabelledFile>,
}

impl Inputs {
    /// Reads all files, for this model.
    ///
    /// # Errors
    /// Names the file, its row and the cause.
    pub(super) fn read(args: &EvaluateArgs, model: &DescribedModel) -> Result<Self> {
        let limit = args.limit.map(|limit| limit as usize);
        let text = |path: &PathBuf| HeldOutFile::read(path, &args.text_column, limit);
        let texts: Vec<HeldOutFile> = args.text.iter().map(text).collect::<Result<_, _>>()?;
        for HeldOutFile { path, odd, .. } in texts.iter().filter(|file| file.odd.count() > 0) {
            tracing::warn!(file = %path.display(), "{odd}");
        }
        let read = |name: &TaskName, limit| TaskFile::read(&name.file, name.kind, limit);
        let mut tasks: Vec<TaskFile> =
            args.task.iter().map(|name| read(name, limit)).collect::<Result<_, _>>()?;
        if let Some(count) = args.few_shot.map(|count| count as usize) {
            let examples = args.few_shot_from.iter().map(|name| read(name, None));
            let examples = examples.collect::<Result<Vec<_>, _>>()?;
            let tasks_with = tasks.into_iter().map(|task| task.with_examples(&examples, count));
            tasks = tasks_with.collect::<Result<_, _>>()?;
            ensure!(!tasks.is_empty(), "--few-shot is for questions: name their files with --task");
        }
        let context = model.spec.context;
        let length = args.sequence_length.unwrap_or(context);
        ensure!(length <= context, "--sequence-length {length}: the model takes {context} tokens at most");
        let settings = settings_of(args, model);
        let labelled = |path: &PathBuf| LabelledFile::read(path, &settings, length, limit);
        let labelled = args.labelled.iter().map(labelled).collect::<Result<_, _>>()?;
        Ok(Self { texts, tasks, labelled })
    }

    /// Whether some file has conversations, which need a chat template.
    pub(super) fn has_conversations(&self) -> bool {
        let documents = self.texts.iter().flat_map(|file| &file.documents);
        documents.into_iter().any(|document| matches!(document.content, Content::Conversation(_)))
    }
}

/// Returns the columns and classes of labelled files.
fn settings_of(args: &EvaluateArgs, model: &DescribedModel) -> ClassificationConfig {
    let column = |name: &String| name.parse().map_or_else(|_| Column::Name(name.clone()), Column::Number);
    ClassificationConfig {
        text: column(&args.text_column),
        text_pair: args.text_pair_column.as_ref().map(column),
        label: column(&args.label_column),
        labels: model.labels.clone(),
        too_long: TooLong::Cut,
    }
}
