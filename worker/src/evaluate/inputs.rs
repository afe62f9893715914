//! The files to evaluate.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use longhaul_data::tasks::{Content, HeldOutFile, TaskFile};

use crate::cli::{EvaluateArgs, TaskName};

/// All questions and texts, in memory.
pub(super) struct Inputs {
    pub(super) texts: Vec<HeldOutFile>,
    pub(super) tasks: Vec<TaskFile>,
}

impl Inputs {
    /// Reads all files.
    ///
    /// # Errors
    /// Names the file, its row and the cause.
    pub(super) fn read(args: &EvaluateArgs) -> Result<Self> {
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
        Ok(Self { texts, tasks })
    }

    /// Whether some file has conversations, which need a chat template.
    pub(super) fn has_conversations(&self) -> bool {
        let documents = self.texts.iter().flat_map(|file| &file.documents);
        documents.into_iter().any(|document| matches!(document.content, Content::Conversation(_)))
    }
}
