//! `[data.classification]`: classes of texts, or of pairs of texts, by the head of an encoder.

use serde::{Deserialize, Serialize};

use super::encoder::{CLASSES_MAX, EncoderConfig, EncoderHead};
use super::{Column, ConfigError, DataConfig, DataFormat, DataSource, RunConfig, TooLong};

/// `[data.classification]`: all sources hold texts with a class each, in JSON lines, CSV, TSV, Parquet or Arrow. The table may be empty. It is for encoders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationConfig {
    /// Column of the text, by name. In CSV and TSV without a head, all columns are given by number, from 1.
    #[serde(default = "ClassificationConfig::default_text")]
    pub text: Column,
    /// Column of the second text, for pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_pair: Option<Column>,
    /// Column of the class: one of `labels`, or its number from 0.
    #[serde(default = "ClassificationConfig::default_label")]
    pub label: Column,
    /// Names of the classes in order, two at least. Default: those of the model (`id2label`), if it has a head for classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Treatment of texts longer than a sequence, which are counted. Of a pair, the longer text is cut first.
    #[serde(default)]
    pub too_long: TooLong,
}

impl Default for ClassificationConfig {
    fn default() -> Self {
        Self {
            text: Self::default_text(),
            text_pair: None,
            label: Self::default_label(),
            labels: Vec::new(),
            too_long: TooLong::default(),
        }
    }
}

impl ClassificationConfig {
    fn default_text() -> Column {
        Column::Name("text".to_owned())
    }

    fn default_label() -> Column {
        Column::Name("label".to_owned())
    }

    /// Returns the number of classes.
    #[must_use]
    pub fn classes(&self) -> u32 {
        self.labels.len() as u32
    }

    /// Returns the columns that are read.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        [Some(&self.text), self.text_pair.as_ref(), Some(&self.label)].into_iter().flatten()
    }

    fn are_numbered(&self) -> bool {
        matches!(self.text, Column::Number(_))
    }

    pub(super) fn check(&self, data: &DataConfig) -> Result<(), ConfigError> {
        let beside = [
            (data.image.is_some(), "data.image", "asks for images"),
            (data.conversations.is_some(), "data.conversations", "trains on the tokens of answers"),
            (data.masking.is_some(), "data.masking", "trains on masked tokens"),
        ];
        if let Some((_, key, does)) = beside.into_iter().find(|(is_set, ..)| *is_set) {
            let reason =
                format!("{does}, and data.classification on classes of texts: leave out one of the two");
            return Err(ConfigError::value(key, "{ … }", reason));
        }
        if data.tokenizer == DataConfig::BYTES {
            let reason = "has no tokens around a text, as encoders need them: name a tokenizer.json, or start from a model (model.from)";
            return Err(ConfigError::value("data.tokenizer", DataConfig::BYTES, reason));
        }
        if let Some(separator) = &data.separator {
            let reason = "follows no text here: the tokenizer ends each of data.classification; leave it out";
            return Err(ConfigError::value("data.separator", format!("{separator:?}"), reason));
        }
        self.check_columns()?;
        self.check_labels()?;
        data.training().iter().chain(&data.validation).try_for_each(|source| self.check_source(source))
    }

    /// Checks the columns, and a file that is to have them.
    ///
    /// # Errors
    /// [`ConfigError`] names the key and the remedy.
    pub fn check_file(&self, source: &DataSource) -> Result<(), ConfigError> {
        self.check_columns()?;
        self.check_source(source)
    }

    fn check_columns(&self) -> Result<(), ConfigError> {
        if self.label == self.text || self.text_pair.as_ref() == Some(&self.label) {
            let reason = "is the column of a text: name that of the classes";
            return Err(ConfigError::value("data.classification.label", &self.label, reason));
        }
        let keys = [
            ("data.classification.text", Some(&self.text)),
            ("data.classification.text_pair", self.text_pair.as_ref()),
            ("data.classification.label", Some(&self.label)),
        ];
        for (key, column) in keys.into_iter().filter_map(|(key, column)| Some((key, column?))) {
            let reason = match column {
                Column::Number(0) => "is no column: they are counted from 1 on",
                column if column.name().is_none() != self.are_numbered() => {
                    "and another column differ: give all columns by name, or all by number (from 1)"
                }
                _ => continue,
            };
            return Err(ConfigError::value(key, column, reason));
        }
        match self.text_pair.as_ref().filter(|pair| **pair == self.text) {
            Some(pair) => {
                let reason = "is the first text as well: name the column of the second, or leave it out";
                Err(ConfigError::value("data.classification.text_pair", pair, reason))
            }
            None => Ok(()),
        }
    }

    fn check_labels(&self) -> Result<(), ConfigError> {
        let refused = |reason: String| {
            Err(ConfigError::value("data.classification.labels", format!("{:?}", self.labels), reason))
        };
        match self.labels.len() {
            0 => {
                return refused(
                    "name the classes in order, as in labels = [\"negative\", \"positive\"]: no model names them"
                        .to_owned(),
                );
            }
            1 => {
                return refused(
                    "are one: a single output is a regression, which is not trained; name two classes at least"
                        .to_owned(),
                );
            }
            count if count > CLASSES_MAX as usize => {
                return refused(format!("are {count}, and must be at most {CLASSES_MAX}"));
            }
            _ => {}
        }
        if self.labels.iter().any(String::is_empty) {
            return refused("have an empty one: name it".to_owned());
        }
        let mut sorted: Vec<&String> = self.labels.iter().collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => refused(format!("have {:?} twice: each class has a name of its own", pair[0])),
            None => Ok(()),
        }
    }

    /// Refuses a source without texts in these columns.
    fn check_source(&self, source: &DataSource) -> Result<(), ConfigError> {
        let refused = |reason| Err(ConfigError::value("data.sources", source, reason));
        match source.format() {
            DataFormat::Csv | DataFormat::Tsv => {}
            DataFormat::Jsonl | DataFormat::Parquet | DataFormat::Arrow if !self.are_numbered() => {}
            DataFormat::Jsonl | DataFormat::Parquet | DataFormat::Arrow => {
                return refused(
                    "its columns have names: give them in data.classification, as numbers are for CSV and TSV without a head",
                );
            }
            _ => {
                return refused(
                    "data.classification is read from JSON lines, CSV, TSV, Parquet and Arrow: say its format if it is one of these under another name, or convert it",
                );
            }
        }
        if source.field.is_some() || source.column.is_some() {
            return refused("data.classification names the columns: leave out field and column");
        }
        Ok(())
    }
}

impl RunConfig {
    /// Gives an encoder the head of the run's classes.
    pub(crate) fn with_classes(mut self) -> Self {
        let Some(classification) = self.data.classification.as_ref() else { return self };
        let classes = classification.classes();
        if self.model.kind.is_encoder() && classes > 0 {
            let encoder = self.model.encoder.get_or_insert_with(EncoderConfig::default);
            encoder.head.get_or_insert(EncoderHead::Classes);
            if encoder.head == Some(EncoderHead::Classes) {
                encoder.classes.get_or_insert(classes);
            }
        }
        self
    }

    /// Checks model and rest of the run together.
    pub(super) fn check_classes(&self) -> Result<(), ConfigError> {
        let Some(classification) = &self.data.classification else {
            return match self.train.classifier_dropout {
                Some(rate) => {
                    let reason = "is of a head for classes: leave it out, or add [data.classification]";
                    Err(ConfigError::value("train.classifier_dropout", rate, reason))
                }
                None => Ok(()),
            };
        };
        if !self.model.kind.is_encoder() {
            let reason = format!(
                "{} has no head for classes, which encoders have: take one of those (kind = \"bert\"), or train it to answer with the class ([data.conversations])",
                self.model.kind.name()
            );
            return Err(ConfigError::value("data.classification", "{ … }", reason));
        }
        let encoder = self.model.encoder.clone().unwrap_or_default();
        let head = encoder.head.unwrap_or_default();
        if head != EncoderHead::Classes {
            let reason = "is another head than that of data.classification: leave it out";
            return Err(ConfigError::value("model.encoder.head", head.name(), reason));
        }
        let (classes, labels) = (encoder.classes.unwrap_or(2), classification.classes());
        if classes != labels {
            let reason = format!("and data.classification.labels are {labels}: make them as many");
            return Err(ConfigError::value("model.encoder.classes", classes, reason));
        }
        if self.train.selective_backward.is_some() {
            let reason = "compares losses of tokens or images, and data.classification has texts with a class: leave it out";
            return Err(ConfigError::value("train.selective_backward", "{ … }", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &str = "sources = [{ path = \"a.jsonl\" }]\ntokenizer = \"t.json\"";
    const LABELS: &str = "labels = [\"bad\", \"good\"]";

    fn parse(kind: &str, data: &str, more: &str) -> Result<RunConfig, String> {
        let text = format!(
            "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nkind = {kind:?}\nlayers = 2\nwidth = 8\nheads = 1\ncontext = 8\n\
             [data]\nsequence_length = 8\n{data}\n[data.classification]\n{more}"
        );
        RunConfig::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_encoder_gets_a_head_of_as_many_classes_as_there_are_labels() {
        for kind in ["bert", "roberta", "xlm-roberta", "electra"] {
            let config = parse(kind, DATA, LABELS).unwrap();
            let encoder = config.model.encoder.clone().unwrap();
            assert_eq!((encoder.head, encoder.classes), (Some(EncoderHead::Classes), Some(2)));
            assert_eq!(config.data.masking, None);
            assert!(!config.data.has_labels() && !config.is_plan_open(), "each sample counts once");
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
        let more =
            format!("{LABELS}\ntext = \"a\"\ntext_pair = \"b\"\nlabel = \"c\"\ntoo_long = \"leave-out\"");
        let config = parse("bert", DATA, &more).unwrap();
        assert_eq!(
            config
                .data
                .classification
                .as_ref()
                .unwrap()
                .columns()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["`a`", "`b`", "`c`"]
        );
        assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
    }

    #[test]
    fn runs_without_a_use_for_classes_are_refused_with_the_remedy() {
        let with = |more: &str| format!("{LABELS}\n{more}");
        let text = DATA.replace("a.jsonl", "a.txt");
        let column = DATA.replace("\"a.jsonl\"", "\"a.csv\", column = \"b\"");
        for (kind, data, more, words) in [
            ("llama", DATA, with(""), "data.classification = { … }: llama has no head for classes"),
            ("bert", DATA, String::new(), "data.classification.labels = []: name the classes in order"),
            (
                "bert",
                DATA,
                "labels = [\"a\"]".to_owned(),
                "data.classification.labels = [\"a\"]: are one: a single output is a regression",
            ),
            (
                "bert",
                DATA,
                "labels = [\"a\", \"a\"]".to_owned(),
                "data.classification.labels = [\"a\", \"a\"]: have \"a\" twice",
            ),
            (
                "bert",
                DATA,
                "labels = [\"a\", \"\"]".to_owned(),
                "data.classification.labels = [\"a\", \"\"]: have an empty one",
            ),
            (
                "bert",
                DATA,
                with("label = \"text\""),
                "data.classification.label = `text`: is the column of a text",
            ),
            (
                "bert",
                DATA,
                with("text_pair = \"text\""),
                "data.classification.text_pair = `text`: is the first",
            ),
            ("bert", DATA, with("text = 4\nlabel = 2"), "data.sources = a.jsonl: its columns have names"),
            (
                "bert",
                DATA,
                with("text = 4"),
                "data.classification.label = `label`: and another column differ",
            ),
            ("bert", DATA, with("text = 0\nlabel = 1"), "data.classification.text = 0: is no column"),
            ("bert", &text, with(""), "data.sources = a.txt: data.classification is read from JSON lines"),
            ("bert", &column, with(""), "data.sources = a.csv: data.classification names the columns"),
            ("bert", "path = \"a.jsonl\"", with(""), "data.tokenizer = bytes: has no tokens around a text"),
            ("bert", DATA, with("[data.masking]"), "data.masking = { … }: trains on masked tokens"),
            ("bert", DATA, with("[data.conversations]"), "data.conversations = { … }: trains on the tokens"),
            (
                "bert",
                DATA,
                with("[model.encoder]\nhead = \"masked\""),
                "model.encoder.head = masked: is another head",
            ),
            (
                "bert",
                DATA,
                with("[model.encoder]\nhead = \"classes\"\nclasses = 3"),
                "model.encoder.classes = 3: and data",
            ),
            (
                "bert",
                DATA,
                with("[parallel]\nstages = 2"),
                "parallel.stages = 2: each worker has all of a classifier",
            ),
            (
                "bert",
                DATA,
                with("[parallel]\ntensor = 2"),
                "parallel.tensor = 2: each worker has all of a classifier",
            ),
            (
                "bert",
                DATA,
                with("[evaluate.tasks]\npiqa = [\"a\"]"),
                "evaluate.tasks.piqa = a: has questions",
            ),
            ("bert", DATA, with("[train.selective_backward]\nbeta = 2.0"), "train.selective_backward = "),
            ("bert", DATA, with("multi_label = true"), "unknown key `multi_label`; the keys there are "),
        ] {
            let message = parse(kind, data, &more).unwrap_err();
            assert!(message.starts_with(words), "{kind}, {data}, {more}: {message}");
        }
        let separated = format!("{DATA}\nseparator = \"\"");
        let message = parse("bert", &separated, LABELS).unwrap_err();
        assert!(message.starts_with("data.separator = \"\": follows no text here"), "{message}");
    }
}
