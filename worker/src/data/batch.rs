//! Sequences for one step.

use tch::{Device, Kind, TchError, Tensor};

/// Token sequences of equal length, [B, T + 1]: inputs are all but the last token of each, targets all but the first.
#[derive(Debug, Default)]
pub struct Batch {
    tokens: Vec<i64>,
    width: usize,
    /// By which the loss of each sequence counts in their mean; none: as it is, and nobody wants to know it.
    weights: Option<Vec<f32>>,
    staged: Option<Staged>,
}

/// Micro-batches as tensors on the host, made before they are wanted.
#[derive(Debug)]
struct Staged {
    /// Sequences in each but the last.
    size: usize,
    /// [B, T + 1] each, int64.
    tensors: Vec<Tensor>,
}

impl Batch {
    /// An empty batch for sequences of `length` tokens T.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { tokens: Vec::new(), width: length + 1, weights: None, staged: None }
    }

    /// Adds a sequence of T + 1 tokens.
    ///
    /// # Panics
    /// When it has another length.
    pub fn push(&mut self, sequence: impl IntoIterator<Item = u32>) {
        let before = self.tokens.len();
        self.staged = None;
        self.tokens.extend(sequence.into_iter().map(i64::from));
        assert_eq!(self.tokens.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Those sequences of which `weights`, one for each, are above zero: in the mean over them, the loss of each counts by its weight, and whoever computes with
    /// them tells the losses of all.
    #[must_use]
    pub fn selected(&self, weights: &[f32]) -> Self {
        let sequences = self.tokens.chunks(self.width.max(1)).zip(weights);
        let chosen = sequences.filter(|(_, weight)| **weight > 0.0);
        let (tokens, weights): (Vec<&[i64]>, Vec<f32>) =
            chosen.map(|(tokens, weight)| (tokens, *weight)).unzip();
        Self { tokens: tokens.concat(), width: self.width, weights: Some(weights), staged: None }
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
        let staged = self.staged.as_ref().filter(|staged| staged.size == size);
        let micro = move |(at, tokens): (usize, _)| {
            let count = <[i64]>::len(tokens) / self.width.max(1);
            let weights = self.weights.as_ref().map(|weights| &weights[at * size..at * size + count]);
            let tensor = staged.and_then(|staged| staged.tensors.get(at));
            MicroBatch { tokens, width: self.width, weights, tensor }
        };
        self.tokens.chunks(size * self.width.max(1)).enumerate().map(micro)
    }

    /// Makes the tensors of micro-batches of `size` now, for `device`: for a GPU in pinned memory, from which it copies by itself.
    ///
    /// # Errors
    /// Where libtorch fails; then they are made when they are wanted.
    pub(super) fn stage(&mut self, size: usize, device: Device) -> Result<(), TchError> {
        let tensor = |micro: MicroBatch<'_>| {
            let tensor = micro.host_tensor()?;
            if device.is_cuda() { tensor.f_pin_memory(device) } else { Ok(tensor) }
        };
        let tensors = self.micro_batches(size).map(tensor).collect::<Result<_, _>>()?;
        self.staged = Some(Staged { size, tensors });
        Ok(())
    }
}

/// Whether the sequences and their weights are the same.
impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        (self.width, &self.tokens, &self.weights) == (other.width, &other.tokens, &other.weights)
    }
}

/// A part of a batch that goes through the model at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroBatch<'a> {
    tokens: &'a [i64],
    width: usize,
    weights: Option<&'a [f32]>,
    tensor: Option<&'a Tensor>,
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

    /// Of the sequences' losses [B], where they are not all alike or are asked for.
    pub(crate) fn weights(&self, device: Device) -> Result<Option<Tensor>, TchError> {
        self.weights.map(|weights| Tensor::f_from_slice(weights)?.f_to_device(device)).transpose()
    }

    /// [B, T + 1], int64.
    pub(crate) fn to_tensor(self, device: Device) -> Result<Tensor, TchError> {
        match self.tensor {
            // From pinned memory, which libtorch keeps until the copy is made, the host need not wait for it.
            Some(staged) => staged.f_to_device_(device, Kind::Int64, device.is_cuda(), false),
            None => self.host_tensor()?.f_to_device(device),
        }
    }

    fn host_tensor(self) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(self.tokens)?.f_view([-1, self.width as i64])
    }
}
