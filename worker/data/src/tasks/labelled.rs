//! Labelled texts for the accuracy of a classifier, read as `[data.classification]` reads them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use longhaul_common::config::{ClassificationConfig, DataFormat, DataSource};

use super::TaskError;
use super::error::{EXAMPLES_MAX, check_file};
use crate::chat::PAD;
use crate::control_tokens::ControlTokens;
use crate::labelled::{LabelledText, Labelling};
use crate::records::whole_rows::RowFormat;
use crate::records::{Record, open_local};
use crate::text_counts::{TextCounts, UnknownTokens};
use crate::{DataError, HostBatch, Notes, OddTexts, Recipe, Tokenizer};

/// Most bytes of a file's texts: they are kept in memory.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes of a row beside those of its texts.
const ROW_BYTES: u64 = (size_of::<LabelledText>() + size_of::<u64>()) as u64;

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
    /// `line`, `element` or `row`.
    unit: String,
    /// The number of each in the file.
    numbers: Vec<u64>,
    /// Notes on its rows.
    pub notes: Notes,
}

/// Labelled texts as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledBatch {
    /// The texts.
    pub batch: HostBatch,
    /// Those longer than a sequence, which lost their end.
    pub cut: usize,
    /// Odd ones and unknown tokens among them.
    pub counts: LabelledCounts,
}

/// Counts of labelled texts as tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LabelledCounts {
    texts: u64,
    tokens: u64,
    counts: TextCounts,
}

impl LabelledCounts {
    /// Adds those of further texts.
    pub fn add(&mut self, other: &Self) {
        self.texts += other.texts;
        self.tokens += other.tokens;
        self.counts.add(&other.counts);
    }

    /// Returns the odd texts.
    #[must_use]
    pub fn odd(&self) -> OddTexts {
        self.counts.odd.among(self.texts, false)
    }

    /// Returns the unknown tokens.
    #[must_use]
    pub fn unknown(&self, tokenizer: &Tokenizer) -> UnknownTokens {
        UnknownTokens::of(&self.counts, self.tokens, tokenizer.unknown(), "")
    }
}

impl LabelledFile {
    /// Reads the first labelled texts of a file, up to `limit`, for sequences of `length` tokens. Notes on them go to the log, a warning but for columns that are not read.
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
        while reader.read < limit.unwrap_or(usize::MAX) as u64 {
            let record = records.next_record().map_err(by_option)?;
            let Some(record) = record else { break };
            reader.take(record, format)?;
        }
        let mut file = reader.finish()?;
        file.notes = records.take_notes();
        let [columns, others] = file.notes.clone().columns_and_others();
        if !columns.are_none() {
            tracing::info!(file = %path.display(), "{columns}");
        }
        if !others.are_none() {
            tracing::warn!(file = %path.display(), "{others}");
        }
        Ok(file)
    }

    /// Returns the number of texts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    /// Returns notes on control tokens that its texts spell.
    #[must_use]
    pub fn control_tokens(&self, tokenizer: &Tokenizer) -> Notes {
        let (mut notes, control_tokens) = (Notes::default(), ControlTokens::of(tokenizer, ""));
        let texts = self.texts.iter().flat_map(|text| [Some(&text.text), text.pair.as_ref()]);
        texts.flatten().for_each(|text| control_tokens.note(text, &mut notes));
        notes
    }

    /// Returns some of its texts as tokens, with padding up to the longest.
    ///
    /// # Errors
    /// Names a text that cannot be tokenised.
    pub fn batch(&self, range: Range<usize>, tokenizer: &Tokenizer) -> Result<LabelledBatch, TaskError> {
        let goes_on = || Ok::<_, TaskError>(());
        let packed = self.labelling.pack(self.texts[range.clone()].iter(), tokenizer, goes_on)?;
        if let Some((at, reason)) = packed.bad.into_iter().next() {
            return Err(TaskError::Question { place: self.place(range.start + at), reason });
        }
        let rows: Vec<Vec<u32>> = packed
            .bytes
            .chunks_exact(self.labelling.row_bytes())
            .map(|row| row.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
            .collect();
        let tokens_of = |row: &Vec<u32>| row.iter().position(|word| *word == PAD).unwrap_or(row.len() - 1);
        let longest = rows.iter().map(tokens_of).max().unwrap_or_default();
        let mut batch = HostBatch::of_labelled(longest);
        for row in &rows {
            batch.push_labelled(row[..longest].iter().chain(row.last()).copied());
        }
        let counts = TextCounts { odd: packed.odd, unknown_tokens: packed.unknown, ..TextCounts::default() };
        let counts = LabelledCounts { texts: rows.len() as u64, tokens: packed.counts.tokens, counts };
        Ok(LabelledBatch { batch, cut: packed.counts.cut as usize, counts })
    }

    /// Returns the place of a text in words.
    fn place(&self, at: usize) -> String {
        format!("{}, {} {}", self.path.display(), self.unit, self.numbers[at])
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
        let file = LabelledFile {
            path: path.to_owned(),
            labelling,
            texts: Vec::new(),
            unit: String::new(),
            numbers: Vec::new(),
            notes: Notes::default(),
        };
        Self { file, read: 0, bytes: 0, wrong: 0, examples: Vec::new() }
    }

    fn take(&mut self, record: Record, format: DataFormat) -> Result<(), TaskError> {
        self.bytes += record.bytes() + ROW_BYTES;
        let (count, reason) = match record {
            Record::Labelled { text, place } => {
                self.file.texts.push(text);
                let (unit, number) = place_of(&place);
                self.file.unit = unit.to_owned();
                self.file.numbers.push(number);
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

/// Returns the unit and the number, the first of several, of a place: `FILE, line 3`, `FILE, lines 3 to 4`.
fn place_of(place: &str) -> (&str, u64) {
    let (_, place) = place.rsplit_once(", ").unwrap_or_default();
    let mut words = place.split(' ');
    let unit = words.next().unwrap_or_default();
    (unit.strip_suffix('s').unwrap_or(unit), words.next().and_then(|it| it.parse().ok()).unwrap_or_default())
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
