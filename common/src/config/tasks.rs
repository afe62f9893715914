//! `[evaluate.tasks]`: questions for the model during a run.

use serde::{Deserialize, Serialize};

use super::{ConfigError, RunConfig, TaskKind};

/// Most files.
const FILES_MAX: usize = 256;
/// Most questions of a file: a hundred times as many as usual tasks have.
pub const TASK_QUESTIONS_MAX: u32 = 1 << 21;

/// `[evaluate.tasks]`: files of questions, which each worker has at the same path. `worker evaluate` describes their columns and scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TasksConfig {
    /// Files of ARC, and others of its form. Paths as in `data.path`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arc: Vec<String>,
    /// Files of HellaSwag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hellaswag: Vec<String>,
    /// Files of MMLU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mmlu: Vec<String>,
    /// Files of PIQA.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub piqa: Vec<String>,
    /// Files of WinoGrande.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub winogrande: Vec<String>,
    /// Files of GSM8K, whose answers are generated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gsm8k: Vec<String>,
    /// Files of prompts with the answers that the model must generate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exact_match: Vec<String>,
    /// First questions of each file, which the workers share; 0: all. Default: 200.
    pub questions: u32,
    /// Most tokens of a generated answer. Default: 256.
    pub answer_tokens: u32,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self {
            arc: Vec::new(),
            hellaswag: Vec::new(),
            mmlu: Vec::new(),
            piqa: Vec::new(),
            winogrande: Vec::new(),
            gsm8k: Vec::new(),
            exact_match: Vec::new(),
            questions: 200,
            answer_tokens: 256,
        }
    }
}

impl TasksConfig {
    /// Returns the files of a kind.
    #[must_use]
    pub fn of(&self, kind: TaskKind) -> &[String] {
        match kind {
            TaskKind::Arc => &self.arc,
            TaskKind::HellaSwag => &self.hellaswag,
            TaskKind::Mmlu => &self.mmlu,
            TaskKind::Piqa => &self.piqa,
            TaskKind::WinoGrande => &self.winogrande,
            TaskKind::Gsm8k => &self.gsm8k,
            TaskKind::ExactMatch => &self.exact_match,
        }
    }

    /// Returns all files with their kinds.
    pub fn files(&self) -> impl Iterator<Item = (TaskKind, &str)> {
        TaskKind::ALL.into_iter().flat_map(|kind| self.of(kind).iter().map(move |file| (kind, &**file)))
    }

    /// Returns the most questions that are read of a file; `None`: all.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        Some(self.questions as usize).filter(|limit| *limit > 0)
    }

    /// Returns the most questions of a kind that one of so many workers scores.
    #[must_use]
    pub fn share_max(&self, kind: TaskKind, workers: usize) -> u64 {
        let of_file =
            if self.questions == 0 { TASK_QUESTIONS_MAX } else { self.questions.min(TASK_QUESTIONS_MAX) };
        self.of(kind).len() as u64 * u64::from(of_file).div_ceil(workers.max(1) as u64)
    }

    /// Whether there are none.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.files().next().is_none()
    }
}

impl RunConfig {
    pub(super) fn check_tasks(&self) -> Result<(), ConfigError> {
        let tasks = &self.evaluate.tasks;
        if tasks.answer_tokens == 0 {
            return Err(ConfigError::value("evaluate.tasks.answer_tokens", 0, "must be at least 1"));
        }
        let Some((kind, file)) = tasks.files().next() else {
            if *tasks != TasksConfig::default() {
                let reason =
                    "names no file of questions: set arc = [\"PATH\"] or another kind, or leave it out";
                return Err(ConfigError::value("evaluate.tasks", "{ … }", reason));
            }
            return Ok(());
        };
        let key = key_of(kind);
        let count = tasks.files().count();
        if count > FILES_MAX {
            let reason = format!("are more than {FILES_MAX} files: join some of a kind");
            return Err(ConfigError::value("evaluate.tasks", count, reason));
        }
        if tasks.files().any(|(_, file)| file.is_empty()) {
            return Err(ConfigError::value(key, "", "is the path of no file"));
        }
        let lacks = if self.model.kind.is_encoder() || self.model.kind.is_of_images() {
            "has questions for a model that continues text, and this one does not: leave it out"
        } else if self.parallel.is_divided() {
            "needs the whole model on one worker: leave it out, and score checkpoints with `worker evaluate`"
        } else if !self.reports_losses() {
            "has scores, which a private run does not report: leave it out"
        } else {
            return Ok(());
        };
        Err(ConfigError::value(key, file, lacks))
    }
}

fn key_of(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::Arc => "evaluate.tasks.arc",
        TaskKind::HellaSwag => "evaluate.tasks.hellaswag",
        TaskKind::Mmlu => "evaluate.tasks.mmlu",
        TaskKind::Piqa => "evaluate.tasks.piqa",
        TaskKind::WinoGrande => "evaluate.tasks.winogrande",
        TaskKind::Gsm8k => "evaluate.tasks.gsm8k",
        TaskKind::ExactMatch => "evaluate.tasks.exact_match",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str =
        "[run]\nname = \"a\"\nworkers = 2\nsteps = 99\n[data]\npath = \"a\"\nsequence_length = 8\n";
    const GPT2: &str = "[model]\nkind = \"gpt2\"\nlayers = 2\nwidth = 8\nheads = 1\ncontext = 8\n";

    fn with(model: &str, tasks: &str) -> Result<RunConfig, String> {
        RunConfig::parse(&format!("{SMALL}{model}[evaluate.tasks]\n{tasks}\n"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn files_are_named_by_kind_and_others_are_refused_with_the_remedy() {
        let config = with(GPT2, "mmlu = [\"a.csv\", \"b.csv\"]\narc = [\"c.parquet\"]").unwrap();
        let files: Vec<_> = config.evaluate.tasks.files().collect();
        assert_eq!(
            files,
            [(TaskKind::Arc, "c.parquet"), (TaskKind::Mmlu, "a.csv"), (TaskKind::Mmlu, "b.csv")]
        );
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        let divided = format!("{GPT2}[parallel]\nplan = \"fixed\"\nstages = 2\n");
        let encoder = GPT2.replace("gpt2\"", "bert\"\nvocabulary = 257") + "[data.masking]\ntoken = 256\n";
        for (model, tasks, words) in [
            (GPT2, "boolq = [\"a\"]", "boolq"),
            (GPT2, "questions = 10", "names no file"),
            (GPT2, "arc = [\"\"]", "evaluate.tasks.arc"),
            (GPT2, "exact_match = [\"a\"]\nanswer_tokens = 0", "answer_tokens"),
            (&*divided, "exact_match = [\"a\"]", "worker evaluate"),
            (&*encoder, "piqa = [\"a\"]", "continues text"),
        ] {
            let error = with(model, tasks).unwrap_err();
            assert!(error.contains(words), "{tasks}: {error}");
        }
    }
}
