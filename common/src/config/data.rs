//! `[data]`: training data of a run.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checkpoint::is_endpoint;
use super::sections::{is_true, is_zero};
use super::{
    ClassificationConfig, Column, ConfigError, ConversationsConfig, DataFormat, DataLabels, DataUrl, Dialect,
    ImageConfig, MaskingConfig,
};

/// Maximum sources: a mixture of more would deviate from its weights by more than five samples.
pub const SOURCES_MAX: usize = 1 << 10;

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// UTF-8 text file, plain, `.gz` or `.zst`, on each worker's machine; overridden by `worker join --data PATH`. Short for one `sources` entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// `bytes`, the path of a `tokenizer.json`, or `model`: that of the model that `model.from` names. Default: `model`, if the run starts from one;
    /// otherwise `bytes`.
    #[serde(default = "DataConfig::default_tokenizer")]
    pub tokenizer: String,
    /// Tokens per training sequence. Needed for text, absent for images.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence_length: u32,
    /// Held-out share at the end of each source's tokens, or of each class's images. Default: 0.05, or 0 with `validation` sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_share: Option<f64>,
    /// Text after each JSON, CSV, Parquet or Arrow record, and after each plain text file that a pattern matches. A special token, such as `<|endoftext|>`,
    /// becomes that token. Default: a line end; of conversations, only pairs of texts have it, and the default is the tokenizer's `eos_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separator: Option<String>,
    /// Unreadable records that each source may skip. With one more, the data is refused.
    #[serde(default)]
    pub bad_records_max: u64,
    /// Refuse a source that would lose files: dangling links, folders or empty files among files, unsupported image types, missing parts of a numbered set.
    /// `false` counts and names them instead. Default: `true`.
    #[serde(default = "DataConfig::default_strict_files", skip_serializing_if = "is_true")]
    pub strict_files: bool,
    /// Image preprocessing. With it, all sources hold images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageConfig>,
    /// Conversations for fine-tuning. With it, all sources hold conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversations: Option<ConversationsConfig>,
    /// Classes of texts, for encoders. With it, all sources hold texts with a class each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ClassificationConfig>,
    /// Masked language modelling. Default: for encoders without `classification`, with the values below; others have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masking: Option<MaskingConfig>,
    /// Training sources, instead of `path`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DataSource>,
    /// Validation sources, instead of a share at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<DataSource>,
}

/// Files of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSource {
    /// A file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Files in name order. `*` and `?` match within a name, `**` matches folders, `[ab]` one of these characters (`[[]` a bracket).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// `https://HOST/PATH` (one file) or `s3://BUCKET/PATTERN`, instead of files on each worker's machine. S3 credentials come from the workers' environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<DataUrl>,
    /// S3 endpoint outside AWS: `http://HOST:PORT` or `https://HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Record format. Default: by extension, without `.gz` or `.zst`. No extension, or that of prose or source code, means text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    /// JSON lines: text field. Default: `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Tables: text column, by name; by number from 1 where a column has no name of its own. Default: `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<Column>,
    /// CSV, TSV: one ASCII character. Default: comma (CSV), tab (TSV).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// CSV, TSV: one ASCII character, doubled within quoted fields (RFC 4180). `""` disables quoting. Default: `"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// CSV, TSV: one ASCII character that makes the next one text, such as `\\`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escape: Option<String>,
    /// IDX: label file, or its URL if the images have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<DataLabels>,
    /// Relative share of the samples. Default: by sample count, so each sample comes once per epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

/// Location of a source's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace<'a> {
    /// One file.
    Path(&'a Path),
    /// Files that a pattern matches.
    Glob(&'a str),
    /// Remote files.
    Url(&'a DataUrl),
}

impl DataPlace<'_> {
    fn as_path(&self) -> Cow<'_, Path> {
        match self {
            Self::Path(path) => Cow::Borrowed(path),
            Self::Glob(pattern) => Cow::Borrowed(Path::new(pattern)),
            Self::Url(url) => Cow::Owned(url.shown().into()),
        }
    }
}

impl DataSource {
    /// Default field or column of text.
    pub const TEXT: &str = "text";
    /// Default field of an image's class.
    pub const LABEL: &str = "label";

    /// Creates a source of one text file.
    #[must_use]
    pub fn file(path: PathBuf) -> Self {
        Self { path: Some(path), ..Self::default() }
    }

    /// Returns the location of its files.
    #[must_use]
    pub fn place(&self) -> DataPlace<'_> {
        match (&self.url, &self.glob, &self.path) {
            (Some(url), ..) => DataPlace::Url(url),
            (None, Some(pattern), _) => DataPlace::Glob(pattern),
            (None, None, Some(path)) => DataPlace::Path(path),
            // Refused when the configuration was read.
            (None, None, None) => DataPlace::Path(Path::new("")),
        }
    }

    /// Returns the format of its files.
    #[must_use]
    pub fn format(&self) -> DataFormat {
        self.format.unwrap_or_else(|| DataFormat::of(&self.place().as_path()))
    }

    /// Returns the dialect of its CSV or TSV.
    ///
    /// # Errors
    /// Names the invalid key.
    pub fn dialect(&self) -> Result<Dialect, &'static str> {
        let delimiter = if self.format() == DataFormat::Tsv { b'\t' } else { b',' };
        Dialect::of(delimiter, self.delimiter.as_deref(), self.quote.as_deref(), self.escape.as_deref())
    }

    fn check_place(&self, key: &'static str) -> Result<(), ConfigError> {
        let refused = |reason: &str| Err(ConfigError::value(key, self, reason));
        if self.url.is_none() && self.place().as_path().to_string_lossy().contains("://") {
            return refused("that is no file on a worker's machine: take url = \"...\"");
        }
        match (&self.endpoint, &self.url) {
            (None, _) => Ok(()),
            (Some(endpoint), Some(DataUrl::S3 { .. })) if is_endpoint(endpoint) => Ok(()),
            (Some(_), Some(DataUrl::S3 { .. })) => refused(
                "its endpoint must begin with http:// or https://, and name a host, without a password: credentials are the worker's environment's",
            ),
            (Some(_), _) => {
                refused("its endpoint is where s3:// is: take url = \"s3://BUCKET/FILE\", or leave it out")
            }
        }
    }

    fn check(&self, key: &'static str, has_images: bool) -> Result<(), ConfigError> {
        let refused = |reason: &str| Err(ConfigError::value(key, self, reason));
        let places = [self.path.is_some(), self.glob.is_some(), self.url.is_some()];
        if places.into_iter().filter(|is_given| *is_given).count() != 1 {
            return refused("each source has one of path, glob and url");
        }
        self.check_place(key)?;
        let format = self.format();
        if self.field.is_some() && !matches!(format, DataFormat::Jsonl | DataFormat::Webdataset) {
            return refused(
                "only JSON lines and WebDataset have a field: take a column for tables, another format, or leave it out",
            );
        }
        if self.column.is_some() && !format.is_table() {
            return refused(
                "only tables (csv, tsv, parquet, arrow) have a column: take a field for JSON lines, or leave it out",
            );
        }
        let has_dialect = self.delimiter.is_some() || self.quote.is_some() || self.escape.is_some();
        if has_dialect && !matches!(format, DataFormat::Csv | DataFormat::Tsv) {
            return refused(
                "only CSV and TSV have a delimiter, a quote and an escape: take format = \"csv\", or leave them out",
            );
        }
        self.dialect().map(drop).or_else(refused)?;
        if self.column == Some(Column::Number(0)) {
            return refused("columns are counted from 1 on");
        }
        if self.weight.is_some_and(|weight| !weight.is_finite() || weight <= 0.0) {
            return refused("a weight is above zero, and finite: leave out the source that is to have none");
        }
        self.check_images(has_images).or_else(refused)
    }
}

/// Displays its path or pattern.
impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place().as_path().display().fmt(f)
    }
}

impl DataConfig {
    /// Name of the byte tokenizer.
    pub const BYTES: &str = "bytes";
    /// Name of the pretrained model's tokenizer.
    pub const OF_MODEL: &str = "model";
    /// Vocabulary size of the byte tokenizer.
    pub const BYTES_VOCABULARY: u32 = 256;
    const VALIDATION_SHARE: f64 = 0.05;

    fn default_tokenizer() -> String {
        Self::BYTES.to_owned()
    }

    const fn default_strict_files() -> bool {
        true
    }

    /// Returns the same data at another place: `path` is there, and relative paths of sources start there.
    #[must_use]
    pub fn found_at(&self, place: &Path) -> Self {
        let mut found = self.clone();
        found.path = self.path.as_ref().map(|_| place.to_owned());
        // A text at another place keeps the locations of its held-out sources.
        let others = if self.path.is_some() { &mut [] } else { found.validation.as_mut_slice() };
        for source in found.sources.iter_mut().chain(others) {
            source.path = source.path.as_ref().map(|path| place.join(path));
            source.labels = source.labels.as_ref().map(|labels| labels.found_at(place));
            // A folder's name may contain pattern characters.
            source.glob = source.glob.as_ref().map(|pattern| {
                if Path::new(pattern).is_absolute() {
                    pattern.clone()
                } else {
                    format!("{}/{pattern}", escaped(place))
                }
            });
        }
        found
    }

    /// Returns the training sources, at least one.
    #[must_use]
    pub fn training(&self) -> Cow<'_, [DataSource]> {
        match &self.path {
            Some(path) => Cow::Owned(vec![DataSource::file(path.clone())]),
            None => Cow::Borrowed(&self.sources),
        }
    }

    /// Returns the share held out at the end of each source's tokens, or of each class's images.
    #[must_use]
    pub fn held_out_share(&self) -> f64 {
        let default = if self.validation.is_empty() { Self::VALIDATION_SHARE } else { 0.0 };
        self.validation_share.unwrap_or(default)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let share = self.held_out_share();
        if !(0.0..=0.5).contains(&share) {
            return Err(ConfigError::value("data.validation_share", share, "must lie between 0 and 0.5"));
        }
        if share > 0.0 && !self.validation.is_empty() {
            let reason = "data.validation has sources of its own: leave out one of the two";
            return Err(ConfigError::value("data.validation_share", share, reason));
        }
        self.check_places()?;
        self.image.as_ref().map_or(Ok(()), ImageConfig::check)?;
        self.conversations.as_ref().map_or(Ok(()), |conversations| conversations.check(self))?;
        self.classification.as_ref().map_or(Ok(()), |classes| classes.check(self))?;
        self.masking.as_ref().map_or(Ok(()), |masking| masking.check(self))?;
        if self.image.is_some() != (self.sequence_length == 0) {
            let reason = "texts are cut into sequences of so many tokens, one at least, and images are not cut: leave it out beside data.image";
            return Err(ConfigError::value("data.sequence_length", self.sequence_length, reason));
        }
        if self.image.is_some() {
            self.check_beside_images()?;
        }
        for (key, sources) in [("data.sources", &self.sources), ("data.validation", &self.validation)] {
            if sources.len() > SOURCES_MAX {
                let reason = format!("must be at most {SOURCES_MAX}; a glob is one source of many files");
                return Err(ConfigError::value(key, format!("{} entries", sources.len()), reason));
            }
            sources.iter().try_for_each(|source| source.check(key, self.image.is_some()))?;
        }
        self.check_weights()
    }

    /// Refuses keys for texts, which have no effect on images.
    fn check_beside_images(&self) -> Result<(), ConfigError> {
        if let Some(path) = &self.path {
            let reason = "data.path is a text: images are given in data.sources";
            return Err(ConfigError::value("data.path", path.display(), reason));
        }
        let reason = "is of texts, and data.image asks for images: leave out one of the two";
        if self.tokenizer != Self::BYTES {
            return Err(ConfigError::value("data.tokenizer", &self.tokenizer, reason));
        }
        if let Some(separator) = &self.separator {
            return Err(ConfigError::value("data.separator", format!("{separator:?}"), reason));
        }
        Ok(())
    }

    fn check_places(&self) -> Result<(), ConfigError> {
        match (&self.path, self.sources.is_empty()) {
            (Some(path), _) if path.to_string_lossy().contains("://") => {
                let reason = "that is no file on a worker's machine: take sources = [{ url = \"...\" }]";
                Err(ConfigError::value("data.path", path.display(), reason))
            }
            (Some(path), false) => {
                let reason = "beside data.sources: make it one of them, or leave one of the two out";
                Err(ConfigError::value("data.path", path.display(), reason))
            }
            (None, true) => {
                let reason = "there is nothing to train on: give data.path, or at least one of data.sources";
                Err(ConfigError::value("data.sources", "[]", reason))
            }
            _ => Ok(()),
        }
    }

    fn check_weights(&self) -> Result<(), ConfigError> {
        let weighted = self.sources.iter().filter(|source| source.weight.is_some()).count();
        if let Some(without) = self.sources.iter().find(|source| source.weight.is_none())
            && weighted > 0
        {
            let reason = "has no weight, and others have: give all a weight, or none";
            return Err(ConfigError::value("data.sources", without, reason));
        }
        match self.validation.iter().find(|source| source.weight.is_some()) {
            Some(source) => {
                let reason = "what is held out has no weight: it is looked at evenly; leave it out";
                Err(ConfigError::value("data.validation", source, reason))
            }
            None => Ok(()),
        }
    }
}

/// Escapes a path as a pattern that matches only itself.
fn escaped(path: &Path) -> String {
    let plain = path.display().to_string();
    plain.chars().map(|c| if "?*[]".contains(c) { format!("[{c}]") } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read_toml;
    use super::*;

    fn parsed(text: &str) -> Result<DataConfig, String> {
        let config: DataConfig =
            read_toml(&format!("sequence_length = 8\n{text}")).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn a_path_is_short_for_one_source() {
        let short = parsed("path = \"a.txt\"").unwrap();
        let long = parsed("sources = [{ path = \"a.txt\" }]").unwrap();
        assert_eq!(short.training(), long.training());
        assert_eq!(short.held_out_share(), 0.05);
        assert_eq!(
            parsed("path = \"a.txt\"\nvalidation = [{ path = \"b.txt\" }]").unwrap().held_out_share(),
            0.0
        );
    }

    #[test]
    fn data_at_another_place_is_the_same_file_or_the_same_paths_below() {
        let file = parsed("path = \"a.txt\"").unwrap().found_at(Path::new("/b/c.txt"));
        assert_eq!(file.path.as_deref(), Some(Path::new("/b/c.txt")));
        let text = "sources = [{ path = \"a.txt\" }, { path = \"/x\" }, { glob = \"d/*.csv\" }]";
        let found = parsed(text).unwrap().found_at(Path::new("/b[1]"));
        let places: Vec<String> = found.sources.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["/b[1]/a.txt", "/x", "/b[[]1[]]/d/*.csv"]);
    }

    #[test]
    fn columns_have_names_or_numbers() {
        let config =
            parsed("sources = [{ path = \"a.csv\", column = \"body\" }, { glob = \"*.tsv\", column = 3 }]");
        let columns: Vec<_> = config.unwrap().sources.into_iter().map(|source| source.column).collect();
        assert_eq!(columns, [Some(Column::Name("body".into())), Some(Column::Number(3))]);
        let message = parsed("sources = [{ path = \"a.csv\", column = true }]").unwrap_err();
        assert!(message.contains("a column's name in quotes, or its number"), "{message}");
    }

    #[test]
    fn what_is_read_is_written_alike() {
        for text in [
            "path = \"a.txt\"",
            "sources = [{ path = \"a.csv\", column = 2, weight = 0.5 }, { glob = \"b/*.jsonl\", field = \"body\", weight = 2 }]",
            "sources = [{ path = \"a.tsv\", delimiter = \"|\", quote = \"\" }, { path = \"b.csv\", quote = \"'\", escape = \"\\\\\" }]\nstrict_files = false",
            "sources = [{ url = \"https://a/b.jsonl?c\" }, { url = \"s3://a/b/*.parquet\", endpoint = \"http://c\" }]",
            "sources = [{ path = \"a\", format = \"tokens-u32\" }]\nvalidation = [{ path = \"b.parquet\" }]\nbad_records_max = 7",
        ] {
            let config = parsed(text).unwrap();
            let written = toml::to_string_pretty(&config).unwrap();
            assert_eq!(read_toml::<DataConfig>(&written).unwrap(), config, "{written}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, words) in [
            ("", "data.sources = []: there is nothing to train on"),
            ("path = \"a\"\nsources = [{ path = \"b\" }]", "data.path = a: beside data.sources"),
            ("sources = [{}]", "data.sources = : each source has one of path, glob and url"),
            ("sources = [{ path = \"a\", glob = \"b\" }]", "data.sources = b: each source has one of"),
            (
                "sources = [{ path = \"a.csv\", field = \"x\" }]",
                "data.sources = a.csv: only JSON lines and WebDataset have a field",
            ),
            ("sources = [{ path = \"a\", column = 1 }]", "data.sources = a: only tables"),
            (
                "sources = [{ path = \"a.csv\", column = 0 }]",
                "data.sources = a.csv: columns are counted from 1",
            ),
            (
                "sources = [{ path = \"a.jsonl\", quote = \"\" }]",
                "data.sources = a.jsonl: only CSV and TSV have",
            ),
            (
                "sources = [{ path = \"a.csv\", delimiter = \"ab\" }]",
                "data.sources = a.csv: its delimiter is one",
            ),
            (
                "sources = [{ path = \"a.csv\", quote = \",\" }]",
                "data.sources = a.csv: its delimiter and its quote",
            ),
            ("sources = [{ path = \"a\", weight = 0 }]", "data.sources = a: a weight is above zero"),
            ("sources = [{ path = \"a\", weight = 1 }, { path = \"b\" }]", "data.sources = b: has no weight"),
            (
                "path = \"a\"\nvalidation = [{ path = \"b\", weight = 1 }]",
                "data.validation = b: what is held out has no",
            ),
            (
                "path = \"a\"\nvalidation_share = 0.1\nvalidation = [{ path = \"b\" }]",
                "data.validation_share = 0.1: ",
            ),
            ("sources = [{ path = \"https://a/b\" }]", "data.sources = https://a/b: that is no file"),
            ("path = \"s3://a/b\"", "data.path = s3://a/b: that is no file"),
            (
                "sources = [{ url = \"a\" }]",
                "line 2, `sources = [{ url = \"a\" }]`: a is not a URL of data: it begins with",
            ),
            (
                "sources = [{ url = \"https://a/b?c\", endpoint = \"http://d\" }]",
                "data.sources = https://a/b: its endpoint is where s3:// is",
            ),
            (
                "sources = [{ url = \"s3://a/b\", endpoint = \"d\" }]",
                "data.sources = s3://a/b: its endpoint must begin",
            ),
            ("path = \"a\"\nvalidation_share = 0.6", "data.validation_share = 0.6: must lie"),
            ("sources = [{ pth = \"a\" }]", "unknown key `pth`, did you mean `path`?"),
        ] {
            let message = parsed(text).unwrap_err();
            assert!(message.starts_with(words), "{text}: {message}");
        }
    }
}
