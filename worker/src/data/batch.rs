//! Samples for one step.

use tch::{Device, TchError, Tensor};

use crate::host_tensor::host_tensor;
use crate::pinned::pinned;

/// Bytes behind an image's pixels: its class, little-endian.
pub(crate) const CLASS_BYTES: usize = 2;

/// Samples of equal size.
///
/// - Token sequences, `[B, T + 1]`: inputs are all but the last token of each, targets all but the first.
/// - Images, `[B, C·H·W + 2]` bytes: the pixels, channel by channel and row by row, and the class in two bytes, little-endian.
#[derive(Debug, Default)]
pub struct Batch {
    values: Values,
    width: usize,
    /// By which the loss of each sample counts in their mean; none: as it is, and nobody wants to know it.
    weights: Option<Vec<f32>>,
    staged: Option<Staged>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    Tokens(Vec<i64>),
    Images(Vec<u8>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Tokens(Vec::new())
    }
}

/// Micro-batches as tensors on the host, made before they are wanted.
#[derive(Debug)]
struct Staged {
    /// Samples in each but the last.
    size: usize,
    /// See [`Batch`] for what is in them: int64, or uint8.
    tensors: Vec<Tensor>,
}

impl Batch {
    /// An empty batch for sequences of `length` tokens T.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { width: length + 1, ..Self::default() }
    }

    /// An empty batch for images of so many values C·H·W.
    #[must_use]
    pub fn of_images(values: usize) -> Self {
        Self { values: Values::Images(Vec::new()), width: values + CLASS_BYTES, ..Self::default() }
    }

    /// Adds a sequence of T + 1 tokens.
    ///
    /// # Panics
    /// When it has another length, or this is a batch of images.
    pub fn push(&mut self, sequence: impl IntoIterator<Item = u32>) {
        self.staged = None;
        let Values::Tokens(tokens) = &mut self.values else { panic!("a batch of images has no tokens") };
        let before = tokens.len();
        tokens.extend(sequence.into_iter().map(i64::from));
        assert_eq!(tokens.len() - before, self.width, "sequences of a batch are equally long");
    }

    /// Adds an image and its class, `[C·H·W + 2]`.
    ///
    /// # Panics
    /// When it has another size, or this is a batch of sequences.
    pub fn push_image(&mut self, sample: &[u8]) {
        self.staged = None;
        let Values::Images(bytes) = &mut self.values else { panic!("a batch of sequences has no image") };
        assert_eq!(sample.len(), self.width, "images of a batch are equally large");
        bytes.extend_from_slice(sample);
    }

    /// Those samples of which `weights`, one for each, are above zero: in the mean over them, the loss of each counts by its weight, and whoever computes with
    /// them tells the losses of all.
    #[must_use]
    pub fn selected(&self, weights: &[f32]) -> Self {
        let values = match &self.values {
            Values::Tokens(tokens) => Values::Tokens(chosen(tokens, self.width, weights)),
            Values::Images(bytes) => Values::Images(chosen(bytes, self.width, weights)),
        };
        let weights = weights.iter().copied().filter(|weight| *weight > 0.0).collect();
        Self { values, width: self.width, weights: Some(weights), staged: None }
    }

    /// Samples, B.
    #[must_use]
    pub fn sequences(&self) -> usize {
        let values = match &self.values {
            Values::Tokens(tokens) => tokens.len(),
            Values::Images(bytes) => bytes.len(),
        };
        values / self.width.max(1)
    }

    /// What is predicted: B·T tokens, or the classes of B images.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        match &self.values {
            Values::Tokens(tokens) => (tokens.len() - self.sequences()) as u64,
            Values::Images(_) => self.sequences() as u64,
        }
    }

    /// The same samples in batches of at most `size`.
    pub(crate) fn micro_batches(&self, size: usize) -> impl Iterator<Item = MicroBatch<'_>> {
        let staged = self.staged.as_ref().filter(|staged| staged.size == size);
        let (count, width) = (self.sequences(), self.width);
        (0..count.div_ceil(size.max(1))).map(move |at| {
            let samples = at * size..count.min((at + 1) * size);
            let values = samples.start * width..samples.end * width;
            let values = match &self.values {
                Values::Tokens(tokens) => Slice::Tokens(&tokens[values]),
                Values::Images(bytes) => Slice::Images(&bytes[values]),
            };
            let weights = self.weights.as_ref().map(|weights| &weights[samples]);
            MicroBatch { values, width, weights, tensor: staged.and_then(|staged| staged.tensors.get(at)) }
        })
    }

    /// Makes the tensors of micro-batches of `size` now, for `device`: for a GPU in pinned memory, from which it copies by itself.
    ///
    /// # Errors
    /// Where libtorch fails; then they are made when they are wanted.
    pub(super) fn stage(&mut self, size: usize, device: Device) -> Result<(), TchError> {
        let tensor = |micro: MicroBatch<'_>| {
            let tensor = micro.host_tensor()?;
            if device.is_cuda() { pinned(&tensor) } else { Ok(tensor) }
        };
        let tensors = self.micro_batches(size).map(tensor).collect::<Result<_, _>>()?;
        self.staged = Some(Staged { size, tensors });
        Ok(())
    }
}

/// Whether the samples and their weights are the same.
impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        (self.width, &self.values, &self.weights) == (other.width, &other.values, &other.weights)
    }
}

/// Of samples of `width` values those with a weight above zero.
fn chosen<T: Copy>(values: &[T], width: usize, weights: &[f32]) -> Vec<T> {
    let is_chosen = |weight: &&f32| **weight > 0.0;
    let mut chosen = Vec::with_capacity(width * weights.iter().filter(is_chosen).count());
    let samples = values.chunks(width.max(1)).zip(weights).filter(|(_, weight)| is_chosen(weight));
    samples.for_each(|(sample, _)| chosen.extend_from_slice(sample));
    chosen
}

/// A part of a batch that goes through the model at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroBatch<'a> {
    values: Slice<'a>,
    width: usize,
    weights: Option<&'a [f32]>,
    tensor: Option<&'a Tensor>,
}

#[derive(Clone, Copy, Debug)]
enum Slice<'a> {
    Tokens(&'a [i64]),
    Images(&'a [u8]),
}

impl MicroBatch<'_> {
    pub(crate) fn sequences(&self) -> usize {
        match self.values {
            Slice::Tokens(tokens) => tokens.len() / self.width,
            Slice::Images(bytes) => bytes.len() / self.width,
        }
    }

    /// What of a sample goes into the model: T tokens, or the C·H·W values of an image.
    pub(crate) fn length(&self) -> usize {
        match self.values {
            Slice::Tokens(_) => self.width - 1,
            Slice::Images(_) => self.width - CLASS_BYTES,
        }
    }

    /// Of each sample: a name that it has wherever it comes again, of its BLAKE3.
    pub(crate) fn names(&self) -> Vec<u64> {
        match self.values {
            Slice::Tokens(tokens) => {
                let bytes = |sequence: &[i64]| {
                    sequence.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>()
                };
                tokens.chunks(self.width).map(|sequence| name(&bytes(sequence))).collect()
            }
            Slice::Images(bytes) => bytes.chunks(self.width).map(name).collect(),
        }
    }

    /// Of the samples' losses `[B]`, where they are not all alike or are asked for.
    pub(crate) fn weights(&self, device: Device) -> Result<Option<Tensor>, TchError> {
        self.weights.map(|weights| Tensor::f_from_slice(weights)?.f_to_device(device)).transpose()
    }

    /// `[B, T + 1]`, int64; or `[B, C·H·W + 2]`, uint8.
    pub(crate) fn to_tensor(self, device: Device) -> Result<Tensor, TchError> {
        match self.tensor {
            // From pinned memory, which libtorch keeps until the copy is made, the host need not wait for it.
            Some(staged) => staged.f_to_device_(device, staged.kind(), device.is_cuda(), false),
            None => self.host_tensor()?.f_to_device(device),
        }
    }

    fn host_tensor(self) -> Result<Tensor, TchError> {
        let values = match self.values {
            Slice::Tokens(tokens) => host_tensor(tokens)?,
            Slice::Images(bytes) => host_tensor(bytes)?,
        };
        values.f_view([-1, self.width as i64])
    }
}

fn name(sample: &[u8]) -> u64 {
    let mut name = [0; 8];
    blake3::Hasher::new().update(sample).finalize_xof().fill(&mut name);
    u64::from_le_bytes(name)
}
