//! Sequences for one step.

use tch::{Device, TchError, Tensor};

/// Token sequences of equal length, [B, T + 1]: inputs are all but the last token of each, targets all but the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    tokens: Vec<i64>,
    width: usize,
}

impl Batch {
    /// An empty batch for sequences of `length` tokens T.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { tokens: Vec::new(), width: length + 1 }
    }

    /// Adds a sequence of T + 1 tokens.
    ///
    /// # Panics
    /// When it has another length.
    pub fn push(&mut self, sequence: impl IntoIterator<Item = u32>) {
        let before = self.tokens.len();
        self.tokens.extend(sequence.into_iter().map(i64::from));
        assert_eq!(self.tokens.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Sequences, B.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.tokens.len() / self.width.max(1)
    }

    /// Tokens that are predicted, B·T.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        (self.tokens.len() - self.sequences()) as u64
    }

    /// The same sequences in batches of at most `size`.
    pub(crate) fn micro_batches(&self, size: usize) -> impl Iterator<Item = MicroBatch<'_>> {
        self.tokens.chunks(size * self.width.max(1)).map(|tokens| MicroBatch { tokens, width: self.width })
    }
}

/// A part of a batch that goes through the model at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroBatch<'a> {
    tokens: &'a [i64],
    width: usize,
}

impl MicroBatch<'_> {
    pub(crate) fn sequences(&self) -> usize {
        self.tokens.len() / self.width
    }

    /// Tokens of a sequence that are predicted, T.
    pub(crate) fn length(&self) -> usize {
        self.width - 1
    }

    /// Of each sequence: a name that it has wherever it comes again, of its tokens' BLAKE3.
    pub(crate) fn names(&self) -> Vec<u64> {
        let name = |sequence: &[i64]| {
            let mut hasher = blake3::Hasher::new();
            for token in sequence {
                hasher.update(&token.to_le_bytes());
            }
            let mut name = [0; 8];
            hasher.finalize_xof().fill(&mut name);
            u64::from_le_bytes(name)
        };
        self.tokens.chunks(self.width.max(1)).map(name).collect()
    }

    /// [B, T + 1], int64.
    pub(crate) fn to_tensor(self, device: Device) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(self.tokens)?.f_view([-1, self.width as i64])?.f_to_device(device)
    }
}
