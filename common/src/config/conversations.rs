//! `[data.conversations]`: training on conversations.

use serde::{Deserialize, Serialize};

use super::{Column, ConfigError, DataConfig, DataFormat, DataPlace, DataSource, RunConfig};

/// `[data.conversations]`: all sources hold conversations, in JSON lines, JSON arrays, Parquet or Arrow. The table may be empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationsConfig {
    /// Form of the records. Default: by their columns, as listed under each form. A source's `field` or `column` names the list of messages, if it has another
    /// name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ConversationKind>,
    /// Jinja file of the chat template, on each worker's machine. Default: `chat_template.jinja` beside the tokenizer, or `chat_template` in its
    /// `tokenizer_config.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The day that `strftime_now` of a template tells, as YYYY-MM-DD. Default: that function is undefined, so prepared data depends on no clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Tokens with a loss.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Put several conversations into one sequence (best-fit decreasing). Attention and positions do not cross them.
    #[serde(default = "ConversationsConfig::default_packing")]
    pub packing: bool,
    /// Treatment of conversations longer than a sequence, which are counted.
    #[serde(default)]
    pub too_long: TooLong,
}

/// Form of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConversationKind {
    /// `messages`: a list of `role` and `content`.
    Messages,
    /// `conversations`: a list of `from` and `value`.
    Sharegpt,
    /// `instruction`, `input` (optional) and `output`.
    Alpaca,
    /// `prompt` and `completion`: texts, or lists of messages.
    PromptCompletion,
}

/// Tokens with a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainOn {
    /// Messages of the assistant, and completions.
    #[default]
    Assistant,
    /// All messages.
    All,
}

/// Treatment of conversations longer than a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// Their end is cut off.
    #[default]
    Cut,
    /// They are left out.
    LeaveOut,
}

impl ConversationKind {
    /// All forms.
    pub const ALL: [Self; 4] = [Self::Messages, Self::Sharegpt, Self::Alpaca, Self::PromptCompletion];

    /// Returns the columns by which it is recognised.
    #[must_use]
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Messages => &["messages"],
            Self::Sharegpt => &["conversations"],
            Self::Alpaca => &["instruction", "output"],
            Self::PromptCompletion => &["prompt", "completion"],
        }
    }

    /// Returns its name in `run.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Sharegpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::PromptCompletion => "prompt-completion",
        }
    }
}

impl Default for ConversationsConfig {
    fn default() -> Self {
        Self {
            kind: None,
            chat_template: None,
            date: None,
            train_on: TrainOn::default(),
            packing: Self::default_packing(),
            too_long: TooLong::default(),
        }
    }
}

impl ConversationsConfig {
    const fn default_packing() -> bool {
        true
    }

    pub(super) fn check(&self, data: &DataConfig) -> Result<(), ConfigError> {
        if data.image.is_some() {
            let reason = "is of texts, and data.image asks for images: leave out one of the two";
            return Err(ConfigError::value("data.conversations", "{ … }", reason));
        }
        if let Some(date) = self.date.as_ref().filter(|date| !is_date(date)) {
            return Err(ConfigError::value("data.conversations.date", date, "must be a day, as YYYY-MM-DD"));
        }
        let refused = |source, reason| ConfigError::value("data.sources", source, reason);
        let check = |source| self.check_source(source).map_err(|reason| refused(source, reason));
        data.training().iter().chain(&data.validation).try_for_each(check)
    }

    /// Returns the conflict of a source with it, if any.
    fn check_source(&self, source: &DataSource) -> Result<(), &'static str> {
        if !matches!(source.format(), DataFormat::Jsonl | DataFormat::Parquet | DataFormat::Arrow) {
            return Err(match (&source.format, source.place()) {
                (None, DataPlace::Glob(_)) => {
                    "its pattern names no format, and data.conversations are read from JSON lines, JSON arrays, Parquet and Arrow: say format = \"jsonl\" for files of JSON, or \"parquet\" or \"arrow\"; convert others"
                }
                _ => {
                    "data.conversations are read from JSON lines, JSON arrays, Parquet and Arrow: say its format if it is one of these under another name, or convert it, or leave out data.conversations"
                }
            });
        }
        let is_of_columns =
            matches!(self.kind, Some(ConversationKind::Alpaca | ConversationKind::PromptCompletion));
        match (&source.field, &source.column) {
            (_, Some(Column::Number(_))) => Err("a column of conversations has a name: give that"),
            (None, None) => Ok(()),
            _ if is_of_columns => {
                Err("data.conversations.kind names its columns: leave out field and column")
            }
            _ => Ok(()),
        }
    }
}

/// Whether a text is a day: its digits are checked here, and the calendar where it is used.
fn is_date(text: &str) -> bool {
    let is_digit = |at: &usize| text.as_bytes()[*at].is_ascii_digit();
    text.len() == "YYYY-MM-DD".len()
        && [0, 1, 2, 3, 5, 6, 8, 9].iter().all(is_digit)
        && [4, 7].iter().all(|at| text.as_bytes()[*at] == b'-')
}

impl RunConfig {
    /// Refuses settings under which contributions cannot be weighted by trained tokens.
    pub(super) fn check_labels(&self) -> Result<(), ConfigError> {
        let data = match (&self.data.conversations, &self.data.masking) {
            (Some(_), _) => "data.conversations",
            (None, Some(_)) => "data.masking",
            (None, None) => return Ok(()),
        };
        let refused = [
            (
                self.train.selective_backward.is_some(),
                "train.selective_backward",
                format!(
                    "compares losses of whole sequences, and {data} trains on parts of them: leave it out"
                ),
            ),
            (
                self.privacy.is_some(),
                "privacy",
                format!(
                    "reckons with samples of equal weight, and those of {data} have as many as trained tokens: leave it out"
                ),
            ),
            (
                self.secure_aggregation.is_some(),
                "secure_aggregation",
                format!(
                    "bounds weights by the number of samples, and those of {data} are trained tokens: leave it out"
                ),
            ),
            (
                self.parallel.differences.is_some() && self.data.masking.is_some(),
                "parallel.differences",
                "takes a sample to be the same at each visit, and its masks are others: leave it out"
                    .to_owned(),
            ),
        ];
        match refused.into_iter().find(|(is_set, ..)| *is_set) {
            Some((_, key, reason)) => Err(ConfigError::value(key, "{ … }", reason)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_toml;
    use super::*;

    const REST: &str = "[run]\nname = \"a\"\nworkers = 2\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\ncontext = 8\n";

    fn data(conversations: &str, source: &str) -> Result<RunConfig, String> {
        let text = format!(
            "{REST}[data]\nsequence_length = 8\nsources = [{{ {source} }}]\n[data.conversations]\n{conversations}"
        );
        RunConfig::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_table_has_the_usual_settings_and_is_written_alike() {
        let config = data("", "path = \"a.jsonl\"").unwrap();
        assert_eq!(config.data.conversations, Some(ConversationsConfig::default()));
        for lines in [
            "",
            "kind = \"prompt-completion\"\ntrain_on = \"all\"\npacking = false\ntoo_long = \"leave-out\"",
            "kind = \"sharegpt\"\nchat_template = \"a.jinja\"\ndate = \"2024-07-26\"",
        ] {
            let config = data(lines, "path = \"a.parquet\"").unwrap();
            assert_eq!(RunConfig::parse(&config.to_toml().unwrap()).unwrap(), config);
        }
        for kind in ConversationKind::ALL {
            let text = format!("kind = {:?}", kind.name());
            assert_eq!(read_toml::<ConversationsConfig>(&text).unwrap().kind, Some(kind));
        }
    }

    #[test]
    fn what_makes_no_sense_with_conversations_is_refused_with_what_would() {
        let jsonl = "path = \"a.jsonl\"";
        for (conversations, source, words) in [
            ("", "path = \"a.csv\"", "data.sources = a.csv: data.conversations are read from JSON lines"),
            ("", "path = \"a.txt\"", "data.sources = a.txt: data.conversations are read from"),
            (
                "",
                "glob = \"*.json*\"",
                "data.sources = *.json*: its pattern names no format, and data.conversations",
            ),
            (
                "",
                "path = \"a.arrow\", column = 1",
                "data.sources = a.arrow: a column of conversations has a name",
            ),
            (
                "kind = \"alpaca\"",
                "path = \"a.jsonl\", field = \"b\"",
                "data.sources = a.jsonl: data.conversations.kind names",
            ),
            ("date = \"26 Jul 2024\"", jsonl, "data.conversations.date = 26 Jul 2024: must be a day"),
            ("train_on_inputs = true", jsonl, "unknown key `train_on_inputs`: here "),
            ("[train.selective_backward]\nbeta = 2.0", jsonl, "train.selective_backward = "),
            ("[secure_aggregation]\nrange = 1.0", jsonl, "secure_aggregation = "),
            ("[privacy]\nclip = 1.0\nnoise = 1.0\ndelta = 1e-6", jsonl, "privacy = "),
        ] {
            let message = data(conversations, source).unwrap_err();
            assert!(message.starts_with(words), "{conversations}, {source}: {message}");
        }
        let text = "image = { height = 8, width = 8, classes = 2 }\nconversations = {}\nsources = [{ path = \"a.tar\" }]";
        let message = read_toml::<DataConfig>(text).unwrap().check().unwrap_err().to_string();
        assert!(message.starts_with("data.conversations = "), "{message}");
    }
}
