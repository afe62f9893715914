//! Encoding of kept values: blocks of values, each with its scales.

use super::formats::{self, BlockShape, NumberFormat};
use super::random::Noise;
use super::{Selection, ValueFormat};

/// Division of a fragment's values into blocks, and their coding.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueBlocks {
    format: &'static dyn NumberFormat,
    code_bits: usize,
    scale_bytes: usize,
    /// Values in a block; the last may have fewer.
    pub block_values: usize,
}

impl ValueBlocks {
    pub fn new(selection: Selection, values: ValueFormat) -> Self {
        let format = formats::of(values);
        let BlockShape { code_bits, values, scale_bytes, .. } = format.shape();
        let block_values = values.unwrap_or_else(|| selection.as_rule().group_values());
        Self { format, code_bits, scale_bytes, block_values }
    }

    /// Returns the bytes of `count` values.
    pub fn bytes(self, count: usize) -> usize {
        let last = count % self.block_values;
        let last_bytes = if last == 0 { 0 } else { self.block_bytes(last) };
        count / self.block_values * self.block_bytes(self.block_values) + last_bytes
    }

    /// Returns the bits of a value of a whole block, with its share of the scales.
    pub fn bits_per_value(self) -> f64 {
        (8 * self.block_bytes(self.block_values)) as f64 / self.block_values as f64
    }

    fn block_bytes(self, count: usize) -> usize {
        self.scale_bytes + (count * self.code_bits).div_ceil(8)
    }

    /// Returns the bytes of the codes of a block other than the last.
    pub fn block_codes_bytes(self) -> usize {
        self.block_bytes(self.block_values) - self.scale_bytes
    }

    /// Returns the bytes of a block's scales, which precede its codes.
    pub fn scale_bytes(self) -> usize {
        self.scale_bytes
    }

    /// Returns the blocks of a section, in order.
    pub fn split(self, section: &[u8]) -> std::slice::Chunks<'_, u8> {
        section.chunks(self.block_bytes(self.block_values))
    }

    /// Appends finite values, rounded to nearest or, with `noise`, at random.
    pub fn quantise(self, values: &[f32], noise: Option<Noise>, out: &mut Vec<u8>) {
        self.format.quantise_all(values, self.block_values, noise, out);
    }

    /// Reconstructs a block of [`ValueBlocks::split`].
    pub fn reconstruct_block(self, block: &[u8], out: &mut [f32]) {
        let (scales, codes) = block.split_at(self.scale_bytes);
        self.format.reconstruct(scales, codes, out);
    }

    /// Reconstructs all values of a section into `out`.
    pub fn reconstruct(self, section: &[u8], out: &mut [f32]) {
        for (block, out) in self.split(section).zip(out.chunks_mut(self.block_values)) {
            self.reconstruct_block(block, out);
        }
    }

    /// Returns the first block of a section with a number that is not finite.
    pub fn first_not_finite(self, section: &[u8]) -> Option<usize> {
        self.format.first_not_finite(section, self.block_bytes(self.block_values))
    }
}
