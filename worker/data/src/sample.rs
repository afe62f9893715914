//! Samples of a run.

use std::ops::Range;
use std::sync::Arc;

use longhaul_common::config::{DataConfig, ImageConfig};
use longhaul_proto::little_endian::tokens;

use super::HostBatch;
use super::chat::{PAD, START, TOKEN_MASK, TRAINED};
use super::image::class_of;
use super::masking::{MaskVisit, Masked, Masker};
use super::{DataError, Tokenizer};

/// A sample as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its source.
    pub source: String,
    /// Its index in the source.
    pub index: u64,
    /// Its content.
    pub content: Content,
}

/// Content of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// T + 1 tokens.
    Tokens(Vec<u32>),
    /// T tokens of a masked sequence.
    Masked {
        /// The tokens that the model sees.
        inputs: Vec<u32>,
        /// How many it predicts.
        predicted: usize,
    },
    /// T + 1 tokens of conversations.
    Row(Vec<RowToken>),
    /// A labelled text.
    Labelled {
        /// Its tokens, without padding.
        tokens: Vec<u32>,
        /// Its class.
        class: u32,
    },
    /// An image.
    Image {
        /// `[channels, height, width]`.
        pixels: Vec<u8>,
        /// Its class.
        class: u32,
    },
}

/// A token of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowToken {
    /// The token.
    pub token: u32,
    /// Whether it is a target of the loss.
    pub is_trained: bool,
    /// Whether it is the first of a conversation.
    pub is_start: bool,
    /// Whether it stands behind all conversations.
    pub is_padding: bool,
}

impl From<u32> for RowToken {
    fn from(word: u32) -> Self {
        let has = |flag| word & flag != 0;
        let (token, is_trained) = (word & TOKEN_MASK, has(TRAINED));
        Self { token, is_trained, is_start: has(START), is_padding: has(PAD) }
    }
}

/// The form of a run's samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SampleShape {
    /// T + 1 tokens, with this T.
    Tokens(u64),
    /// T + 1 tokens of whole conversations, with this T.
    Rows(u32),
    /// T tokens, masked, with this T.
    Masked(u64, Arc<Masker>),
    /// A labelled text of T tokens at most, with this T.
    Labelled(u32),
    /// An image and its class.
    Image(ImageConfig),
}

impl SampleShape {
    /// Returns the form of the samples that the configuration describes.
    ///
    /// # Errors
    /// Tokens are to be masked, and the tokenizer has no mask.
    pub(super) fn of(config: &DataConfig, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let masker = Masker::of(config, tokenizer)?;
        if config.classification.is_some() {
            return Ok(Self::Labelled(config.sequence_length));
        }
        Ok(match (&config.image, &config.conversations, masker) {
            (Some(image), ..) => Self::Image(image.clone()),
            (None, Some(_), _) => Self::Rows(config.sequence_length),
            (None, None, Some(masker)) => Self::Masked(config.sequence_length.into(), Arc::new(masker)),
            (None, None, None) => Self::Tokens(config.sequence_length.into()),
        })
    }

    /// Returns the number of whole samples in `items` items of a source.
    pub(super) fn samples(&self, items: u64) -> u64 {
        match self {
            Self::Tokens(length) => items.saturating_sub(1) / length,
            Self::Masked(length, _) => items / length,
            Self::Rows(_) | Self::Labelled(_) | Self::Image(_) => items,
        }
    }

    /// Returns the items of a sample.
    pub(super) fn items(&self, sample: u64) -> Range<u64> {
        match self {
            Self::Tokens(length) => sample * length..(sample + 1) * length + 1,
            Self::Masked(length, _) => sample * length..(sample + 1) * length,
            Self::Rows(_) | Self::Labelled(_) | Self::Image(_) => sample..sample + 1,
        }
    }

    /// Returns an empty batch.
    pub(super) fn batch(&self) -> HostBatch {
        match self {
            Self::Tokens(length) => HostBatch::new(*length as usize),
            Self::Rows(length) => HostBatch::of_rows(*length as usize),
            Self::Labelled(length) => HostBatch::of_labelled(*length as usize),
            Self::Masked(length, _) => HostBatch::of_masked(*length as usize),
            Self::Image(shape) => HostBatch::of_images(shape.values() as usize),
        }
    }

    /// Adds a sample in the form of a shard to a batch.
    pub(super) fn push(&self, sample: &[u8], item_bytes: usize, visit: MaskVisit, batch: &mut HostBatch) {
        match self {
            Self::Masked(_, masker) => batch.push_masked(masker.draw(&tokens(sample, item_bytes), visit)),
            Self::Tokens(_) => push_tokens(sample, item_bytes, batch),
            Self::Rows(_) => batch.push_row(words(sample)),
            Self::Labelled(_) => batch.push_labelled(words(sample)),
            Self::Image(_) => batch.push_image(sample),
        }
    }

    /// Converts a sample in the form of a shard for display.
    pub(super) fn content(&self, mut sample: Vec<u8>, item_bytes: usize, visit: MaskVisit) -> Content {
        match self {
            Self::Tokens(_) => Content::Tokens(tokens(&sample, item_bytes)),
            Self::Masked(_, masker) => {
                let stored = tokens(&sample, item_bytes);
                let masked: Vec<Masked> = masker.draw(&stored, visit).collect();
                let predicted = masked.iter().filter(|token| token.label.is_some()).count();
                Content::Masked { inputs: masked.iter().map(|token| token.input).collect(), predicted }
            }
            Self::Rows(_) => Content::Row(words(&sample).map(RowToken::from).collect()),
            Self::Labelled(length) => {
                let tokens = words(&sample).take(*length as usize).take_while(|word| word & PAD == 0);
                let tokens = tokens.map(|word| word & TOKEN_MASK).collect();
                Content::Labelled { tokens, class: words(&sample).last().unwrap_or_default() }
            }
            Self::Image(shape) => {
                let class = class_of(&sample);
                sample.truncate(shape.values() as usize);
                Content::Image { pixels: sample, class }
            }
        }
    }

    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        match self {
            Self::Tokens(length) => {
                hasher.update(&length.to_le_bytes());
            }
            Self::Rows(length) => {
                hasher.update(b"rows");
                hasher.update(&length.to_le_bytes());
            }
            Self::Labelled(length) => {
                hasher.update(b"labelled");
                hasher.update(&length.to_le_bytes());
            }
            Self::Masked(length, masker) => {
                hasher.update(b"masked");
                hasher.update(&length.to_le_bytes());
                masker.hash_into(hasher);
            }
            Self::Image(ImageConfig { channels, height, width, classes, shift, flip }) => {
                for number in [*channels, *height, *width, *classes, *shift, u32::from(*flip)] {
                    hasher.update(&number.to_le_bytes());
                }
            }
        }
    }
}

fn words(sample: &[u8]) -> impl Iterator<Item = u32> {
    sample.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// Adds tokens of `token_bytes` bytes each. A size known at compile time avoids a copy call per token.
fn push_tokens(sample: &[u8], token_bytes: usize, batch: &mut HostBatch) {
    match token_bytes {
        2 => batch.push(sample.as_chunks().0.iter().map(|token| u16::from_le_bytes(*token).into())),
        4 => batch.push(sample.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token))),
        _ => batch.push(tokens(sample, token_bytes)),
    }
}
