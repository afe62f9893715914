//! Texts, or pairs of texts, with a class each: see `docs/classification.md`.

mod label;
mod row_reader;
mod rows;

use std::fmt;

use longhaul_common::config::{ClassificationConfig, Column, DataConfig, TooLong};

pub(crate) use self::row_reader::LabelledReader;
pub use self::rows::SECOND;

/// Version of the preparation of labelled texts. A change of it gives new names in the cache.
const VERSION: u32 = 4;

/// All that determines the sequences of labelled texts, besides the texts and the tokenizer.
#[derive(Clone, Debug)]
pub(crate) struct Labelling {
    /// Column of the text.
    pub(crate) text: Column,
    /// Column of the second text.
    pub(crate) text_pair: Option<Column>,
    /// Column of the class.
    pub(crate) label: Column,
    /// Names of the classes, in order.
    labels: Vec<String>,
    too_long: TooLong,
    /// Tokens of a sequence, T.
    length: u32,
}

/// A text, or a pair, with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelledText {
    pub(crate) text: String,
    pub(crate) pair: Option<String>,
    pub(crate) class: u32,
}

impl Labelling {
    /// Reads the settings; `None`: the run has no labelled texts.
    pub(crate) fn of(config: &DataConfig) -> Option<Self> {
        Some(Self::with(config.classification.as_ref()?, config.sequence_length))
    }

    /// Returns that of these settings, with sequences of `length` tokens.
    pub(crate) fn with(settings: &ClassificationConfig, length: u32) -> Self {
        Self {
            text: settings.text.clone(),
            text_pair: settings.text_pair.clone(),
            label: settings.label.clone(),
            labels: settings.labels.clone(),
            too_long: settings.too_long,
            length,
        }
    }

    /// Returns the columns that are read.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &Column> {
        [Some(&self.text), self.text_pair.as_ref(), Some(&self.label)].into_iter().flatten()
    }

    /// Returns the number of classes.
    pub(crate) fn classes(&self) -> u64 {
        self.labels.len() as u64
    }
}

/// Shows all of it: it is part of the recipe's hash.
impl fmt::Display for Labelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, text_pair, label, labels, too_long, length } = self;
        let pair = text_pair.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        write!(
            f,
            "labelled texts {VERSION}, columns {text}, {pair} and {label}, classes {labels:?}, {too_long:?} beyond {length}"
        )
    }
}

impl LabelledText {
    /// Returns the bytes of its texts.
    pub(crate) fn bytes(&self) -> u64 {
        (self.text.len() + self.pair.as_ref().map_or(0, String::len)) as u64
    }

    /// Hashes all that determines its tokens and class.
    pub(crate) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        for text in [Some(&self.text), self.pair.as_ref()].into_iter().flatten() {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&self.class.to_le_bytes());
    }
}
