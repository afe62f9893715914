//! Labelled texts for the accuracy of a classifier, read as `[data.classification]` reads them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use longhaul_common::config::{ClassificationConfig, DataFormat, DataSource};

use super::TaskError;
use super::error::{EXAMPLES_MAX, check_file};
use crate::labelled::{LabelledText, Labelling};
use crate::records::whole_rows::RowFormat;
use crate::records::{Record, open_local};
use crate::{DataError, HostBatch, Notes, Recipe, Tokenizer};

/// Most bytes of a file's texts: they are kept in memory.
const BYTES_MAX: u64 = 1 << 30;

/// Keys of `[data.classification]`, and the options of `worker evaluate` that do the same. Longer keys are before their beginnings.
const OPTIONS: [(&str, &str); 9] = [
    ("data.sources = ", ""),
    (
        "data.classification names the columns of text, text_pair and label",
        "--text-column, --text-pair-column and --label-column name the columns",
    ),
    ("as in text = 1 and label = 2", "as in --text-column 1 --label-column 2"),
    ("give them in data.classification", "give them"),
    ("data.classification is read", "labelled texts are read"),
    ("data.classification.labels", "the model's classes"),
    ("data.classification.text_pair", "--text-pair-column"),
    ("data.classification.text", "--text-column"),
    ("data.classification.label", "--label-column"),
];

/// The labelled texts of a file.
#[derive(Clone, Debug)]
pub struct LabelledFile {
    /// The file.
    pub path: PathBuf,
    labelling: Labelling,
    texts: Vec<LabelledText>,
    /// The place of each.
    places: Vec<String>,
}

/// Labelled texts as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledBatch {
    /// The texts.
    pub batch: HostBatch,
    /// Those longer than a sequence, which lost their end.
    pub cut: usize,
}

impl LabelledFile {
    /// Reads the first labelled texts of a file, up to `limit`, for sequences of `length` tokens. Notes on them go to the log.
    ///
    /// # Errors
    /// It cannot be read, lacks a column, or some row has no text or none of the classes: the error counts such rows and names the first.
    pub fn read(
        path: &Path,
        settings: &ClassificationConfig,
        length: u32,
        limit: Option<usize>,
    ) -> Result<Self, TaskError> {
        check_file(path)?;
        let format = format_of(path).ok_or_else(|| TaskError::Format { path: path.to_owned() })?;
        let source =
            DataSource { path: Some(path.to_owned()), format: Some(format), ..DataSource::default() };
        settings
            .check_file(&source)
            .map_err(|error| TaskError::Labelled(by_options(&error.to_string(), format)))?;
        let labelling = Labelling::with(settings, length);
        let mut reader = Reader::new(path, labelling);
        let by_option = |error| error_by_options(error, format);
        let mut records =
            open_local(path, &Recipe::of_labelled(format, &reader.file.labelling)).map_err(by_option)?;
        let mut notes = Notes::default();
        while reader.read < limit.unwrap_or(usize::MAX) as u64 {
            let record = records.next_record().map_err(by_option)?;
            notes.add(&records.take_notes());
            let Some(record) = record else { break };
            reader.take(record, format)?;
        }
        if !notes.are_none() {
            tracing::warn!(file = %path.display(), "{notes}");
        }
        reader.finish()
    }

    /// Returns the number of texts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    /// Returns some of its texts as tokens.
    ///
    /// # Errors
    /// Names a text that cannot be tokenised.
    pub fn batch(&self, range: Range<usize>, tokenizer: &Tokenizer) -> Result<LabelledBatch, TaskError> {
        let (texts, places) = (&self.texts[range.clone()], &self.places[range]);
        let goes_on = || Ok::<_, TaskError>(());
        let packed = self.labelling.pack(texts.iter(), tokenizer, goes_on)?;
        if let Some((at, reason)) = packed.bad.into_iter().next() {
            return Err(TaskError::Question { place: places[at].clone(), reason });
        }
        let row_bytes = self.labelling.row_bytes();
        let mut batch = HostBatch::of_labelled(row_bytes / size_of::<u32>() - 1);
        for row in packed.bytes.chunks_exact(row_bytes) {
            let (words, _) = row.as_chunks();
            batch.push_labelled(words.iter().map(|word| u32::from_le_bytes(*word)));
        }
        Ok(LabelledBatch { batch, cut: packed.counts.cut as usize })
    }
}

struct Reader {
    file: LabelledFile,
    /// Rows so far.
    read: u64,
    bytes: u64,
    wrong: u64,
    examples: Vec<String>,
}

impl Reader {
    fn new(path: &Path, labelling: Labelling) -> Self {
        let file = LabelledFile { path: path.to_owned(), labelling, texts: Vec::new(), places: Vec::new() };
        Self { file, read: 0, bytes: 0, wrong: 0, examples: Vec::new() }
    }

    fn take(&mut self, record: Record, format: DataFormat) -> Result<(), TaskError> {
        self.bytes += record.bytes();
        let (count, reason) = match record {
            Record::Labelled { text, place } => {
                self.file.texts.push(text);
                self.file.places.push(place);
                (0, None)
            }
            Record::Bad { reason, count } => (count, Some(reason)),
            other => (1, Some(format!("{other:?} is no labelled text"))),
        };
        self.read += count.max(1);
        self.wrong += count;
        let place = format!("{}, ", self.file.path.display());
        let told = reason.filter(|_| self.examples.len() < EXAMPLES_MAX);
        self.examples
            .extend(told.map(|reason| by_options(reason.strip_prefix(&place).unwrap_or(&reason), format)));
        match self.bytes > BYTES_MAX {
            true => Err(TaskError::TooMuch {
                path: self.file.path.clone(),
                most: format!("{} MiB of text", BYTES_MAX >> 20),
                remedy: "divide it, or give --limit",
            }),
            false => Ok(()),
        }
    }

    fn finish(self) -> Result<LabelledFile, TaskError> {
        let Self { file, read, wrong, examples, .. } = self;
        match (read, wrong) {
            (0, _) => Err(TaskError::Empty { path: file.path }),
            (_, 0) => Ok(file),
            (all, wrong) => {
                let kind = "labelled texts".to_owned();
                Err(TaskError::Rows { path: file.path, kind, wrong, all, examples })
            }
        }
    }
}

fn format_of(path: &Path) -> Option<DataFormat> {
    Some(match RowFormat::of(path)? {
        RowFormat::Json => DataFormat::Jsonl,
        RowFormat::Delimited(b'\t') => DataFormat::Tsv,
        RowFormat::Delimited(_) => DataFormat::Csv,
        RowFormat::Parquet => DataFormat::Parquet,
        RowFormat::Arrow => DataFormat::Arrow,
    })
}

/// Returns a reason with options in place of keys.
fn by_options(reason: &str, format: DataFormat) -> String {
    // Nothing here replaces these keys.
    let (reason, end) = match reason.split_once(": say format = ") {
        Some((reason, _)) => (reason, ": its name must end as its format does"),
        None => (reason.split_once(": say labels = ").map_or(reason, |(reason, _)| reason), ""),
    };
    let between = if format == DataFormat::Tsv { "tabs" } else { "commas" };
    let anew = format!("write it anew with {between} in place of ");
    let reason = OPTIONS.iter().fold(reason.to_owned(), |reason, (key, option)| reason.replace(key, option));
    let reason = reason.replace("say delimiter = ", &anew).replace("in data.classification give", "give");
    let reason = ["say quote = \"\"", "say escape = \"\\\\\""]
        .iter()
        .fold(reason, |reason, key| reason.replace(key, "write it as JSON lines"));
    format!("{reason}{end}")
}

/// Returns an error with options in place of keys.
fn error_by_options(error: DataError, format: DataFormat) -> DataError {
    let by_options = |reason: String| by_options(&reason, format);
    match error {
        DataError::NoColumn { path, column, known, remedy } => {
            DataError::NoColumn { path, column, known, remedy: by_options(remedy) }
        }
        DataError::OtherContent { path, what } => DataError::OtherContent { path, what: by_options(what) },
        DataError::Malformed { path, format, place, reason } => {
            DataError::Malformed { path, format, place, reason: by_options(reason) }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests;
