//! Samples of one step, and their tensors.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use longhaul_data::{
    Dataset, HostBatch, HostMicroBatch, LABEL_BIT, PAD, ReadAhead, SECOND, START, TOKEN_MASK, TRAINED, Values,
};
use tch::{Device, Kind, TchError, Tensor};

use crate::host_tensor::host_tensor;
use crate::models::{Documents, IGNORED, Segments};
use crate::pinned::pinned;

/// Samples of one step, whose tensors may be made in advance.
#[derive(Debug, Default)]
pub struct Batch {
    samples: HostBatch,
    staged: Option<Staged>,
}

/// Micro-batches as tensors on the host.
#[derive(Debug)]
struct Staged {
    /// Samples in each but the last.
    size: usize,
    /// As in [`HostBatch`]: int64 with the flags of rows and texts or the labels of masked sequences, or uint8.
    tensors: Vec<Tensor>,
}

/// Reads batches ahead, and stages them for `device`.
///
/// # Errors
/// The system provides no threads.
pub fn read_ahead(data: Arc<Dataset>, seed: u64, device: Device) -> io::Result<ReadAhead<Batch>> {
    ReadAhead::start(data, seed, move |samples, size| Batch::staged(samples, size, device))
}

impl Batch {
    /// Creates an empty batch for sequences of `length` tokens T.
    #[must_use]
    pub fn new(length: usize) -> Self {
        HostBatch::new(length).into()
    }

    /// Creates an empty batch for images of `values` values C·H·W.
    #[must_use]
    pub fn of_images(values: usize) -> Self {
        HostBatch::of_images(values).into()
    }

    /// Creates an empty batch for rows of conversations, in sequences of `length` tokens T.
    #[must_use]
    pub fn of_rows(length: usize) -> Self {
        HostBatch::of_rows(length).into()
    }

    /// Creates an empty batch for masked sequences of `length` tokens T.
    #[must_use]
    pub fn of_masked(length: usize) -> Self {
        HostBatch::of_masked(length).into()
    }

    /// Creates an empty batch for labelled texts in sequences of `length` tokens T.
    #[must_use]
    pub fn of_labelled(length: usize) -> Self {
        HostBatch::of_labelled(length).into()
    }

    /// Makes the tensors of micro-batches of `size` for `device`: for a GPU in pinned memory, for asynchronous copies. Without memory, they are made on
    /// demand, where the error can be handled.
    #[must_use]
    pub fn staged(samples: HostBatch, size: usize, device: Device) -> Self {
        let tensor = |micro: HostMicroBatch<'_>| {
            let tensor = on_host(&micro)?;
            if device.is_cuda() { pinned(&tensor) } else { Ok(tensor) }
        };
        let tensors = samples.micro_batches(size).map(tensor).collect::<Result<_, TchError>>();
        Self { staged: tensors.ok().map(|tensors| Staged { size, tensors }), samples }
    }

    /// See [`HostBatch::selected`].
    #[must_use]
    pub fn selected(&self, weights: &[f32]) -> Self {
        self.samples.selected(weights).into()
    }

    /// Returns the same samples in batches of at most `size`.
    pub(crate) fn micro_batches(&self, size: usize) -> impl Iterator<Item = MicroBatch<'_>> {
        let staged = self.staged.as_ref().filter(|staged| staged.size == size);
        let tensor = move |at: usize| staged.and_then(|staged| staged.tensors.get(at));
        let micros = self.samples.micro_batches(size).enumerate();
        micros.map(move |(at, samples)| MicroBatch { samples, tensor: tensor(at) })
    }
}

impl From<HostBatch> for Batch {
    fn from(samples: HostBatch) -> Self {
        Self { samples, staged: None }
    }
}

impl Deref for Batch {
    type Target = HostBatch;

    fn deref(&self) -> &HostBatch {
        &self.samples
    }
}

/// Changed samples have to be staged anew.
impl DerefMut for Batch {
    fn deref_mut(&mut self) -> &mut HostBatch {
        self.staged = None;
        &mut self.samples
    }
}

/// Compares samples and their weights.
impl PartialEq for Batch {
    fn eq(&self, other: &Self) -> bool {
        self.samples == other.samples
    }
}

/// A part of a batch that goes through the model at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MicroBatch<'a> {
    samples: HostMicroBatch<'a>,
    tensor: Option<&'a Tensor>,
}

impl<'a> Deref for MicroBatch<'a> {
    type Target = HostMicroBatch<'a>;

    fn deref(&self) -> &HostMicroBatch<'a> {
        &self.samples
    }
}

impl MicroBatch<'_> {
    /// Returns its share of a batch with a mean over `count` losses.
    pub(crate) fn share(&self, count: usize) -> f64 {
        self.losses() as f64 / count.max(1) as f64
    }

    /// Returns the weights of the samples' losses `[B]`, if they differ or losses are requested.
    pub(crate) fn weights(&self, device: Device) -> Result<Option<Tensor>, TchError> {
        let weights = self.samples.weights();
        weights.map(|weights| Tensor::f_from_slice(weights)?.f_to_device(device)).transpose()
    }

    /// `[B, T + 1]`, or `[B, T]` if masked, int64; or `[B, C·H·W + 2]`, uint8. Of labelled texts, the first [`length`](HostMicroBatch::length) are the input.
    pub(crate) fn to_tensor(self, device: Device) -> Result<Tensor, TchError> {
        let values = self.on_device(device)?;
        match self.samples.values() {
            Values::Rows(_) | Values::Labelled(_) => token_of(&values),
            Values::Masked(_) => values.f_bitwise_and(INPUT_MASK),
            Values::Tokens(_) | Values::Images(_) => Ok(values),
        }
    }

    /// Returns the targets of rows and masked sequences `[B, T]`, int64, [`IGNORED`] where a token is none; or the classes of texts `[B, 1]`; `None`: all tokens
    /// are targets.
    pub(crate) fn labels(self, device: Device) -> Result<Option<Tensor>, TchError> {
        match self.samples.values() {
            Values::Rows(_) => {
                let targets = self.on_device(device)?.f_narrow(1, 1, self.length() as i64)?;
                let is_none = has(&targets, TRAINED)?.f_logical_not()?;
                token_of(&targets)?.f_masked_fill(&is_none, IGNORED).map(Some)
            }
            Values::Masked(_) => {
                let words = self.on_device(device)?;
                let labels =
                    words.f_bitwise_right_shift_tensor_scalar(i64::from(LABEL_BIT))?.f_sub_scalar(1)?;
                labels.f_masked_fill(&labels.f_lt(0)?, IGNORED).map(Some)
            }
            Values::Labelled(_) => self.on_device(device)?.f_narrow(1, -1, 1).map(Some),
            Values::Tokens(_) | Values::Images(_) => Ok(None),
        }
    }

    /// Returns the documents of rows; `None`: each sequence is one document.
    pub(crate) fn documents(self, device: Device) -> Result<Option<Documents>, TchError> {
        if !self.has_documents() {
            return Ok(None);
        }
        let inputs = self.on_device(device)?.f_narrow(1, 0, self.length() as i64)?;
        Documents::new(&has(&inputs, START)?).map(Some)
    }

    /// Returns the texts and the padding of labelled texts; `None`: there are no pairs and no padding.
    pub(crate) fn segments(self, device: Device) -> Result<Option<Segments>, TchError> {
        let (has_pairs, has_padding) = (self.has_pairs(), self.has_padding());
        if !has_pairs && !has_padding {
            return Ok(None);
        }
        let words = self.on_device(device)?.f_narrow(1, 0, self.length() as i64)?; // [B, T]
        let with = |is_there: bool, flag| is_there.then(|| has(&words, flag)).transpose();
        Segments::new(with(has_pairs, SECOND)?.as_ref(), with(has_padding, PAD)?.as_ref()).map(Some)
    }

    fn on_device(self, device: Device) -> Result<Tensor, TchError> {
        match self.tensor {
            // The host need not wait for a copy from pinned memory, which libtorch keeps until then.
            Some(staged) => staged.f_to_device_(device, staged.kind(), device.is_cuda(), false),
            None => on_host(&self.samples)?.f_to_device(device),
        }
    }
}

/// The inputs in words of masked sequences.
const INPUT_MASK: i64 = (1 << LABEL_BIT) - 1;

/// Returns the tokens of words.
fn token_of(words: &Tensor) -> Result<Tensor, TchError> {
    words.f_bitwise_and(i64::from(TOKEN_MASK))
}

/// Returns whether words have a flag.
fn has(words: &Tensor, flag: u32) -> Result<Tensor, TchError> {
    words.f_bitwise_and(i64::from(flag))?.f_to_kind(Kind::Bool)
}

fn on_host(micro: &HostMicroBatch<'_>) -> Result<Tensor, TchError> {
    let values = match micro.values() {
        Values::Tokens(values) | Values::Rows(values) | Values::Masked(values) | Values::Labelled(values) => {
            host_tensor(values)?
        }
        Values::Images(bytes) => host_tensor(bytes)?,
    };
    values.f_view([-1, micro.width() as i64])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tokens() -> HostBatch {
        let mut batch = HostBatch::new(4);
        (0..5_u32).for_each(|row| batch.push((0..5).map(|at| 10 * row + at)));
        batch
    }

    fn of_images() -> HostBatch {
        let mut batch = HostBatch::of_images(3);
        (0..5_u8).for_each(|row| batch.push_image(&[row, 100 + row, 255 - row, row, 0]));
        batch
    }

    fn tensors(batch: &Batch, size: usize) -> Vec<Vec<Vec<i64>>> {
        let tensor = |micro: MicroBatch<'_>| {
            let tensor = micro.to_tensor(Device::Cpu).unwrap();
            assert_eq!(tensor.size(), [micro.sequences() as i64, micro.width() as i64]);
            tensor.to_kind(Kind::Int64).try_into().unwrap()
        };
        batch.micro_batches(size).map(tensor).collect()
    }

    #[test]
    fn tensors_have_the_samples_staged_or_not_in_parts_of_any_size() {
        let token = |row: i64| (0..5).map(|at| 10 * row + at).collect::<Vec<i64>>();
        let image = |row: i64| vec![row, 100 + row, 255 - row, row, 0];
        for (batch, row) in [(of_tokens(), &token as &dyn Fn(i64) -> Vec<i64>), (of_images(), &image)] {
            let rows: Vec<Vec<i64>> = (0..5).map(row).collect();
            for size in [1, 2, 3, 5, 9] {
                let expected: Vec<_> = rows.chunks(size).map(<[_]>::to_vec).collect();
                for staged_for in [size, 2] {
                    let staged = Batch::staged(batch.clone(), staged_for, Device::Cpu);
                    assert!(staged.staged.is_some());
                    assert_eq!(tensors(&staged, size), expected, "{size} of {staged_for}");
                }
                assert_eq!(tensors(&batch.clone().into(), size), expected, "{size}");
            }
        }
    }

    #[test]
    fn what_is_added_or_left_out_is_not_what_was_staged() {
        let mut batch = Batch::staged(of_tokens(), 2, Device::Cpu);
        let chosen = batch.selected(&[0.0, 2.0, 0.0, 0.5, 0.0]);
        assert_eq!(tensors(&chosen, 2), [[vec![10, 11, 12, 13, 14], vec![30, 31, 32, 33, 34]]]);
        let micro = chosen.micro_batches(2).next().unwrap();
        let weights = micro.weights(Device::Cpu).unwrap().unwrap();
        assert_eq!(Vec::<f32>::try_from(weights).unwrap(), [2.0, 0.5]);
        batch.push([7; 5]);
        assert_eq!((batch.sequences(), batch.tokens()), (6, 24));
        assert_eq!(tensors(&batch, 2)[2][1], [7; 5]);
    }
}
