//! Samples for one step, in the host's memory.

use super::chat::{PAD, START, TRAINED};
use super::labelled::SECOND;
use super::masking::Masked;

/// Bytes of an image's class after its pixels, little-endian.
pub const CLASS_BYTES: usize = 2;
/// Bits of a token in a masked sequence.
pub const LABEL_BIT: u32 = 32;

/// Samples of equal size.
///
/// - Token sequences, `[B, T + 1]`: inputs are all but the last token of each, targets all but the first.
/// - Rows of conversations, `[B, T + 1]`: each value is a token and three flags: bit 31, it is a target of the loss; bit 30, it is the first of a
///   conversation; bit 29, it is padding.
/// - Masked sequences, `[B, T]`: each value is the token that the model sees and, from [`LABEL_BIT`] on, one more than the token that it predicts there,
///   or zero.
/// - Labelled texts, `[B, T + 1]`: the class behind the tokens of a text or a pair. Each token has two flags: bit 30, it is of the second text; bit 29, it is
///   padding.
/// - Images, `[B, C·H·W + 2]` bytes: the pixels, channel by channel and row by row, and the class in two bytes,
///   little-endian.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostBatch {
    values: Owned,
    width: usize,
    /// Weight of each sample's loss in the mean; `None`: equal weights, and individual losses are not needed.
    weights: Option<Vec<f32>>,
    /// Seed of each sample's random choices; empty: there are none.
    seeds: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owned {
    Tokens(Vec<i64>),
    Rows(Vec<i64>),
    Masked(Vec<i64>),
    Labelled(Vec<i64>),
    Images(Vec<u8>),
}

impl Default for Owned {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

impl HostBatch {
    /// Returns an empty batch for sequences of `length` tokens T.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { width: length + 1, ..Self::default() }
    }

    /// Returns an empty batch for rows of conversations in sequences of `length` tokens T.
    #[must_use]
    pub fn of_rows(length: usize) -> Self {
        Self { values: Owned::Rows(Vec::new()), width: length + 1, ..Self::default() }
    }

    /// Returns an empty batch for masked sequences of `length` tokens T.
    #[must_use]
    pub fn of_masked(length: usize) -> Self {
        Self { values: Owned::Masked(Vec::new()), width: length, ..Self::default() }
    }

    /// Returns an empty batch for labelled texts in sequences of `length` tokens T.
    #[must_use]
    pub fn of_labelled(length: usize) -> Self {
        Self { values: Owned::Labelled(Vec::new()), width: length + 1, ..Self::default() }
    }

    /// Returns an empty batch for images of C·H·W values.
    #[must_use]
    pub fn of_images(values: usize) -> Self {
        Self { values: Owned::Images(Vec::new()), width: values + CLASS_BYTES, ..Self::default() }
    }

    /// Adds a sequence of T + 1 tokens.
    ///
    /// # Panics
    /// It has another length, or this is a batch of images.
    pub fn push(&mut self, sequence: impl IntoIterator<Item = u32>) {
        let Owned::Tokens(tokens) = &mut self.values else { panic!("a batch of another kind") };
        let before = tokens.len();
        tokens.extend(sequence.into_iter().map(i64::from));
        assert_eq!(tokens.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Adds a row of T + 1 words: see [`Self`].
    ///
    /// # Panics
    /// It has another length, or this is a batch of another kind.
    pub fn push_row(&mut self, row: impl IntoIterator<Item = u32>) {
        let Owned::Rows(words) = &mut self.values else { panic!("a batch of another kind") };
        let before = words.len();
        words.extend(row.into_iter().map(i64::from));
        assert_eq!(words.len() - before, self.width, "rows of a batch are equally long");
    }

    /// Adds T words and the class of a labelled text: see [`Self`].
    ///
    /// # Panics
    /// There are more or fewer, or this is a batch of another kind.
    pub fn push_labelled(&mut self, text: impl IntoIterator<Item = u32>) {
        let Owned::Labelled(words) = &mut self.values else { panic!("a batch of another kind") };
        let before = words.len();
        words.extend(text.into_iter().map(i64::from));
        assert_eq!(words.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Adds T masked tokens.
    ///
    /// # Panics
    /// There are more or fewer, or this is a batch of another kind.
    pub(super) fn push_masked(&mut self, sequence: impl IntoIterator<Item = Masked>) {
        let word = |Masked { input, label }| {
            i64::from(input) | label.map_or(0, |label| i64::from(label) + 1) << LABEL_BIT
        };
        self.push_masked_words(sequence.into_iter().map(word));
    }

    /// Adds T words of masked tokens: see [`Self`].
    ///
    /// # Panics
    /// There are more or fewer, or this is a batch of another kind.
    pub fn push_masked_words(&mut self, sequence: impl IntoIterator<Item = i64>) {
        let Owned::Masked(words) = &mut self.values else { panic!("a batch of another kind") };
        let before = words.len();
        words.extend(sequence);
        assert_eq!(words.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Adds an image and its class, `[C·H·W + 2]`.
    ///
    /// # Panics
    /// It has another size, or this is a batch of sequences.
    pub fn push_image(&mut self, sample: &[u8]) {
        let Owned::Images(bytes) = &mut self.values else { panic!("a batch of another kind") };
        assert_eq!(sample.len(), self.width, "images of a batch are equally large");
        bytes.extend_from_slice(sample);
    }

    /// Gives each sample the seed of its random choices in training, such as dropout.
    ///
    /// # Panics
    /// Their number is not that of the samples.
    #[must_use]
    pub fn seeded(self, seeds: Vec<u64>) -> Self {
        assert_eq!(seeds.len(), self.sequences(), "one seed for each sample");
        Self { seeds, ..self }
    }

    /// Returns the samples with `weights` above zero, one weight per sample: it scales the sample's loss in the
    /// mean, and the engine reports the losses of all.
    #[must_use]
    pub fn selected(&self, weights: &[f32]) -> Self {
        let values = match &self.values {
            Owned::Tokens(tokens) => Owned::Tokens(chosen(tokens, self.width, weights)),
            Owned::Rows(words) => Owned::Rows(chosen(words, self.width, weights)),
            Owned::Masked(words) => Owned::Masked(chosen(words, self.width, weights)),
            Owned::Labelled(words) => Owned::Labelled(chosen(words, self.width, weights)),
            Owned::Images(bytes) => Owned::Images(chosen(bytes, self.width, weights)),
        };
        let seeds = chosen(&self.seeds, 1, weights);
        let weights = weights.iter().copied().filter(|weight| *weight > 0.0).collect();
        Self { values, width: self.width, weights: Some(weights), seeds }
    }

    /// Returns the number of samples, B.
    #[must_use]
    pub fn sequences(&self) -> usize {
        let values = match &self.values {
            Owned::Tokens(values) | Owned::Rows(values) | Owned::Masked(values) | Owned::Labelled(values) => {
                values.len()
            }
            Owned::Images(bytes) => bytes.len(),
        };
        values / self.width.max(1)
    }

    /// Returns the number of equally weighted losses in the mean: samples, or targets in rows of conversations and masked sequences.
    #[must_use]
    pub fn losses(&self) -> usize {
        match &self.values {
            Owned::Rows(words) => trained_in(words),
            Owned::Masked(words) => labelled_in(words),
            Owned::Tokens(_) | Owned::Labelled(_) | Owned::Images(_) => self.sequences(),
        }
    }

    /// Returns the number of processed tokens: B·T, without the padding of labelled texts; or that of images.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        match &self.values {
            Owned::Tokens(values) | Owned::Rows(values) => (values.len() - self.sequences()) as u64,
            Owned::Masked(values) => values.len() as u64,
            Owned::Labelled(values) => values.chunks(self.width).map(|text| filled(text) as u64).sum(),
            Owned::Images(_) => self.sequences() as u64,
        }
    }

    /// Returns the same samples in batches of at most `size`.
    pub fn micro_batches(&self, size: usize) -> impl Iterator<Item = HostMicroBatch<'_>> {
        let (count, width) = (self.sequences(), self.width);
        (0..count.div_ceil(size.max(1))).map(move |at| {
            let samples = at * size..count.min((at + 1) * size);
            let values = samples.start * width..samples.end * width;
            let values = match &self.values {
                Owned::Tokens(tokens) => Values::Tokens(&tokens[values]),
                Owned::Rows(words) => Values::Rows(&words[values]),
                Owned::Masked(words) => Values::Masked(&words[values]),
                Owned::Labelled(words) => Values::Labelled(&words[values]),
                Owned::Images(bytes) => Values::Images(&bytes[values]),
            };
            let weights = self.weights.as_ref().map(|weights| &weights[samples.clone()]);
            HostMicroBatch { values, width, weights, seeds: self.seeds.get(samples).unwrap_or_default() }
        })
    }
}

/// Returns the number of targets of the loss.
fn trained_in(words: &[i64]) -> usize {
    words.iter().filter(|word| **word & i64::from(TRAINED) != 0).count()
}

fn labelled_in(words: &[i64]) -> usize {
    words.iter().filter(|word| **word >> LABEL_BIT > 0).count()
}

/// Returns the tokens of a labelled text without padding.
fn filled(text: &[i64]) -> usize {
    let tokens = &text[..text.len() - 1];
    tokens.iter().position(|word| word & i64::from(PAD) != 0).unwrap_or(tokens.len())
}

/// Returns the samples, of `width` values each, with a weight above zero.
fn chosen<T: Copy>(values: &[T], width: usize, weights: &[f32]) -> Vec<T> {
    let is_chosen = |weight: &&f32| **weight > 0.0;
    let mut chosen = Vec::with_capacity(width * weights.iter().filter(is_chosen).count());
    let samples = values.chunks(width.max(1)).zip(weights).filter(|(_, weight)| is_chosen(weight));
    samples.for_each(|(sample, _)| chosen.extend_from_slice(sample));
    chosen
}

/// A part of a batch that goes through the model at once.
#[derive(Clone, Copy, Debug)]
pub struct HostMicroBatch<'a> {
    values: Values<'a>,
    width: usize,
    weights: Option<&'a [f32]>,
    seeds: &'a [u64],
}

/// Consecutive samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values<'a> {
    /// Sequences of T + 1 tokens.
    Tokens(&'a [i64]),
    /// Rows of T + 1 words.
    Rows(&'a [i64]),
    /// Masked sequences of T words.
    Masked(&'a [i64]),
    /// Labelled texts of T words and a class.
    Labelled(&'a [i64]),
    /// Images of C·H·W + 2 bytes.
    Images(&'a [u8]),
}

impl<'a> HostMicroBatch<'a> {
    /// Returns its samples: see [`HostBatch`].
    #[must_use]
    pub fn values(&self) -> Values<'a> {
        self.values
    }

    /// Returns the values of a sample: T + 1, T if it is masked, or C·H·W + 2.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the weight of each sample's loss, `[B]`, if weights differ or losses are needed.
    #[must_use]
    pub fn weights(&self) -> Option<&'a [f32]> {
        self.weights
    }

    /// Returns the seed of each sample's random choices, `[B]`; empty: there are none.
    #[must_use]
    pub fn seeds(&self) -> &'a [u64] {
        self.seeds
    }

    /// Returns the number of samples, B.
    #[must_use]
    pub fn sequences(&self) -> usize {
        match self.values {
            Values::Tokens(values)
            | Values::Rows(values)
            | Values::Masked(values)
            | Values::Labelled(values) => values.len() / self.width,
            Values::Images(bytes) => bytes.len() / self.width,
        }
    }

    /// Returns the number of equally weighted losses: see [`HostBatch::losses`].
    #[must_use]
    pub fn losses(&self) -> usize {
        match self.values {
            Values::Rows(words) => trained_in(words),
            Values::Masked(words) => labelled_in(words),
            Values::Tokens(_) | Values::Labelled(_) | Values::Images(_) => self.sequences(),
        }
    }

    /// Whether a sequence has several conversations, so that attention is not causal alone.
    #[must_use]
    pub fn has_documents(&self) -> bool {
        let Values::Rows(words) = self.values else { return false };
        let mut rows = words.chunks(self.width);
        rows.any(|row| row.iter().skip(1).any(|word| word & i64::from(START) != 0))
    }

    /// Whether some labelled text is a pair.
    #[must_use]
    pub fn has_pairs(&self) -> bool {
        let Values::Labelled(words) = self.values else { return false };
        let mut texts = words.chunks(self.width);
        texts.any(|text| text[..self.width - 1].iter().any(|word| word & i64::from(SECOND) != 0))
    }

    /// Whether some labelled text is shorter than another one here.
    #[must_use]
    pub fn has_padding(&self) -> bool {
        let Values::Labelled(words) = self.values else { return false };
        let longest = self.length();
        words.chunks(self.width).any(|text| filled(text) < longest)
    }

    /// Returns the model's inputs per sample: T tokens, or those of the longest labelled text, or the C·H·W values of an image.
    #[must_use]
    pub fn length(&self) -> usize {
        match self.values {
            Values::Tokens(_) | Values::Rows(_) => self.width - 1,
            Values::Masked(_) => self.width,
            Values::Labelled(words) => words.chunks(self.width).map(filled).max().unwrap_or(0),
            Values::Images(_) => self.width - CLASS_BYTES,
        }
    }

    /// Returns a name of each sample that is stable across epochs, from its BLAKE3.
    #[must_use]
    pub fn names(&self) -> Vec<u64> {
        match self.values {
            Values::Tokens(tokens)
            | Values::Rows(tokens)
            | Values::Masked(tokens)
            | Values::Labelled(tokens) => {
                let bytes = |sequence: &[i64]| {
                    sequence.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>()
                };
                tokens.chunks(self.width).map(|sequence| name(&bytes(sequence))).collect()
            }
            Values::Images(bytes) => bytes.chunks(self.width).map(name).collect(),
        }
    }
}

fn name(sample: &[u8]) -> u64 {
    let mut name = [0; 8];
    blake3::Hasher::new().update(sample).finalize_xof().fill(&mut name);
    u64::from_le_bytes(name)
}
