//! Questions of a file.

use std::path::{Path, PathBuf};

use csv::StringRecord;
use longhaul_common::config::TASK_QUESTIONS_MAX;
use serde_json::Value;

use super::choices::{self, LETTERS};
use super::error::{EXAMPLES_MAX, check_file};
use super::few_shot::Examples;
use super::kind::kind_of;
use super::labels::Labels;
use super::{Answer, Choice, Item, TaskError, TaskKind, generated, unread};
use crate::notes::Notes;
use crate::records::whole_rows::{Row, RowFormat, UnreadColumn, WholeRow, open};

/// Columns shown in a message.
const COLUMNS_MAX: usize = 20;

/// A file of questions of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFile {
    /// The file.
    pub path: PathBuf,
    /// Its kind.
    pub kind: TaskKind,
    /// Its questions, in order.
    pub questions: Vec<Question>,
    /// The columns that are in no prompt.
    pub notes: Notes,
    /// Solved questions before these.
    pub(super) examples: Examples,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its place: `line`, `element` or `row`, and its number.
    pub at: (&'static str, u64),
    /// The text before the examples and the question, which names its subject.
    pub description: String,
    /// The task for the model.
    pub item: Item,
}

impl TaskFile {
    /// Reads the first questions of a file, up to `limit`. Without a `kind`, the columns of the first row tell it.
    ///
    /// # Errors
    /// It cannot be read, its columns are of no kind or of another, or some row is not of its form: the error counts such rows and names the first.
    pub fn read(path: &Path, kind: Option<TaskKind>, limit: Option<usize>) -> Result<Self, TaskError> {
        check_file(path)?;
        let format = RowFormat::of(path).ok_or_else(|| TaskError::Format { path: path.to_owned() })?;
        let mut reader = Reader {
            path,
            kind,
            labels: None,
            questions: Vec::new(),
            notes: Notes::default(),
            wrong: 0,
            examples: Vec::new(),
        };
        let (mut read, mut are_all) = (0, true);
        for row in open(path, format, mmlu_head)? {
            let row = row?;
            if limit.is_some_and(|limit| read >= limit) {
                are_all = false;
                break;
            }
            if read == TASK_QUESTIONS_MAX as usize {
                let (most, remedy) = (format!("{TASK_QUESTIONS_MAX} rows"), "divide it, or read fewer");
                return Err(TaskError::TooMuch { path: path.to_owned(), most, remedy });
            }
            reader.take(read, row)?;
            read += 1;
        }
        reader.finish(read, are_all)
    }

    /// Returns every `of`-th question, from the one at `from` on.
    #[must_use]
    pub fn part(&self, from: usize, of: usize) -> Self {
        let questions = self.questions.iter().skip(from).step_by(of.max(1)).cloned().collect();
        let Self { path, kind, notes, examples, .. } = self;
        let (path, notes, examples) = (path.clone(), notes.clone(), examples.clone());
        Self { path, kind: *kind, questions, notes, examples }
    }

    /// Hashes the questions with their answers. Examples before them do not count.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(self.kind.name());
        text(&self.questions.len().to_string());
        for Question { description, item, .. } in &self.questions {
            text(description);
            match item {
                Item::Choice(Choice { pairs, right, .. }) => {
                    text(&format!("{right} of {}", pairs.len()));
                    pairs.iter().flat_map(|pair| [&pair.context, &pair.continuation]).for_each(|it| text(it));
                }
                Item::Answer(Answer { prompt, expected, .. }) => {
                    [prompt, expected].into_iter().for_each(|it| text(it))
                }
            }
        }
    }

    /// Returns the place of a question in words.
    #[must_use]
    pub fn place(&self, question: &Question) -> String {
        let (unit, number) = question.at;
        format!("{}, {unit} {number}", self.path.display())
    }
}

struct Reader<'a> {
    path: &'a Path,
    kind: Option<TaskKind>,
    /// The labels beside it, if it has none and they were looked for.
    labels: Option<Option<Labels>>,
    questions: Vec<Question>,
    notes: Notes,
    wrong: u64,
    examples: Vec<String>,
}

impl Reader<'_> {
    fn take(&mut self, index: usize, row: WholeRow) -> Result<(), TaskError> {
        let WholeRow { unit, number, row, unread } = row;
        let at = (unit, number);
        let question = match row {
            Ok(mut row) => {
                let kind = match self.kind {
                    Some(kind) => kind,
                    None => *self.kind.insert(kind_of(&row).ok_or_else(|| self.unknown(&row, &unread))?),
                };
                self.label(index, kind, &mut row)?;
                let question = self.question(kind, at, &row);
                question.and_then(|it| unread::note(kind, &row, &unread, &mut self.notes).map(|()| it))
            }
            Err(reason) => Err(reason),
        };
        match question {
            Ok(question) => self.questions.push(question),
            Err(reason) => {
                self.wrong += 1;
                if self.examples.len() < EXAMPLES_MAX {
                    self.examples.push(format!("{} {}: {reason}", at.0, at.1));
                }
            }
        }
        Ok(())
    }

    /// Adds the label to a row without one.
    fn label(&mut self, index: usize, kind: TaskKind, row: &mut Row) -> Result<(), TaskError> {
        let column = match kind {
            TaskKind::Piqa => "label",
            TaskKind::WinoGrande => "answer",
            _ => return Ok(()),
        };
        if row.contains_key(column) {
            return Ok(());
        }
        let labels = match self.labels.take() {
            Some(labels) => labels,
            None => Labels::beside(self.path)?,
        };
        let labels = self.labels.insert(labels).as_ref();
        if let Some(label) = labels.and_then(|labels| labels.get(index)) {
            row.insert(column.to_owned(), Value::from(label));
        }
        Ok(())
    }

    fn question(&self, kind: TaskKind, at: (&'static str, u64), row: &Row) -> Result<Question, String> {
        let item = match kind {
            TaskKind::Arc => choices::arc(row).map(Item::Choice),
            TaskKind::HellaSwag => choices::hellaswag(row).map(Item::Choice),
            TaskKind::Mmlu => choices::mmlu(row).map(Item::Choice),
            TaskKind::Piqa => choices::piqa(row).map(Item::Choice),
            TaskKind::WinoGrande => choices::winogrande(row).map(Item::Choice),
            TaskKind::Gsm8k => generated::gsm8k(row).map(Item::Answer),
            TaskKind::ExactMatch => generated::exact_match(row).map(Item::Answer),
        }?;
        let description = match (kind, row.get("subject").and_then(Value::as_str)) {
            (TaskKind::Mmlu, Some(subject)) if !subject.is_empty() => choices::about(subject),
            (TaskKind::Mmlu, _) => subject_of(self.path).map(choices::about).unwrap_or_default(),
            _ => String::new(),
        };
        Ok(Question { at, description, item })
    }

    fn finish(self, read: usize, are_all: bool) -> Result<TaskFile, TaskError> {
        let path = self.path.to_owned();
        if let Some(Some(labels)) = &self.labels {
            labels.check(read, are_all)?;
        }
        let Some(kind) = self.kind.filter(|_| read > 0) else {
            return match self.examples.first() {
                Some(_) => Err(self.refused("a task", read)),
                None => Err(TaskError::Empty { path }),
            };
        };
        if self.wrong > 0 {
            let form = format!("{kind} ({})", kind.columns());
            return Err(self.refused(&form, read));
        }
        if !self.notes.are_none() {
            tracing::info!(file = %path.display(), notes = %self.notes, "not all of its questions' columns are in prompts");
        }
        let (questions, notes) = (self.questions, self.notes);
        Ok(TaskFile { path, kind, questions, notes, examples: Examples::default() })
    }

    fn refused(self, kind: &str, read: usize) -> TaskError {
        let (path, kind) = (self.path.to_owned(), kind.to_owned());
        TaskError::Rows { path, kind, wrong: self.wrong, all: read as u64, examples: self.examples }
    }

    fn unknown(&self, row: &Row, unread: &[UnreadColumn]) -> TaskError {
        let known: Vec<String> =
            TaskKind::ALL.iter().map(|kind| format!("{kind} ({})", kind.columns())).collect();
        let hint = if row.contains_key("text") { "for the perplexity of its texts say --text; " } else { "" };
        let remedy = format!("{hint}those of tasks are {}", known.join(", "));
        TaskError::Columns { path: self.path.to_owned(), found: names(row, unread), remedy }
    }
}

/// Returns the names of a row's columns, and of those that are not read, for messages.
pub(super) fn names(row: &Row, unread: &[UnreadColumn]) -> String {
    let listed =
        |names: &mut dyn Iterator<Item = String>| names.take(COLUMNS_MAX).collect::<Vec<_>>().join(", ");
    let own = if row.is_empty() { "none".to_owned() } else { listed(&mut row.keys().cloned()) };
    match unread {
        [] => own,
        _ => format!("{own}, and not read are {}", listed(&mut unread.iter().map(ToString::to_string))),
    }
}

/// Names the columns of MMLU's original CSV files, which have no head: a question, four answers, a letter.
fn mmlu_head(first: &StringRecord) -> Option<StringRecord> {
    let is_row = first.len() == LETTERS.len() + 2
        && first.iter().next_back().is_some_and(|last| LETTERS.contains(&last.trim()));
    is_row.then(|| ["question"].into_iter().chain(LETTERS).chain(["answer"]).collect())
}

/// Returns the subject that names one of MMLU's original files: `anatomy` of `anatomy_test.csv`.
fn subject_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?.split('.').next()?;
    ["_test", "_val", "_dev"]
        .iter()
        .find_map(|split| name.strip_suffix(split))
        .filter(|subject| !subject.is_empty())
}
