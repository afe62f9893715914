//! From a frame to a fragment.

use std::mem;

use super::chunks::Chunks;
use super::header::{HEADER_BYTES, Header};
use super::update::add_scaled;
use super::value_blocks::ValueBlocks;
use super::{DecodeError, Update, positions};

/// Reads frames, of whatever specification. One decoder serves any number of frames, one after the other, and
/// allocates only when one is larger than all before.
///
/// No bytes make it panic, and it never holds more than sixteen bytes for each value of the longest fragment that was
/// expected of it.
#[derive(Debug)]
pub struct Decoder {
    /// The update that was decoded last; its memory is reused.
    update: Update,
    /// One block of values.
    block: Vec<f32>,
}

impl Decoder {
    /// A decoder without memory of its own yet.
    pub const fn new() -> Self {
        Self { update: Update::Dense(Vec::new()), block: Vec::new() }
    }

    /// Returns the update of `expected_len` values that the frame holds.
    ///
    /// # Errors
    /// [`DecodeError`] names what is wrong with the frame.
    pub fn decode(&mut self, frame: &[u8], expected_len: usize) -> Result<&Update, DecodeError> {
        let sections = Sections::split(frame, expected_len)?;
        match sections.header.chunks() {
            Some(chunks) => self.read_sparse(&sections, chunks)?,
            None => {
                let (_, mut values) = self.take_memory();
                values.resize(expected_len, 0.0);
                sections.reconstruct(&mut values);
                self.update = Update::Dense(values);
            }
        }
        Ok(&self.update)
    }

    /// Adds `weight` times the frame's update to `accumulator`; the same as [`Decoder::decode`] and
    /// [`Update::add_scaled_to`], bit by bit, without a dense copy in between.
    ///
    /// # Errors
    /// [`DecodeError`] names what is wrong with the frame; `accumulator` is then as before.
    pub fn decode_add(
        &mut self,
        frame: &[u8],
        expected_len: usize,
        weight: f32,
        accumulator: &mut [f32],
    ) -> Result<(), DecodeError> {
        if accumulator.len() != expected_len {
            let accumulator = accumulator.len();
            return Err(DecodeError::AccumulatorLength { accumulator, expected: expected_len });
        }
        let sections = Sections::split(frame, expected_len)?;
        if let Some(chunks) = sections.header.chunks() {
            self.read_sparse(&sections, chunks)?;
            self.update.add_scaled_to(weight, accumulator);
            return Ok(());
        }
        let block_values = sections.blocks.block_values;
        self.block.resize(block_values, 0.0);
        for (block, sums) in sections.blocks.split(sections.values).zip(accumulator.chunks_mut(block_values))
        {
            let values = &mut self.block[..sums.len()];
            sections.blocks.reconstruct_block(block, values);
            add_scaled(values, weight, sums);
        }
        Ok(())
    }

    fn read_sparse(&mut self, sections: &Sections<'_>, chunks: Chunks) -> Result<(), DecodeError> {
        let (mut positions, mut values) = self.take_memory();
        values.resize(chunks.kept_total(), 0.0);
        sections.reconstruct(&mut values);
        let outcome = positions::decode(chunks, sections.positions, &mut positions);
        self.update = Update::Sparse { len: sections.header.len, positions, values };
        outcome
    }

    fn take_memory(&mut self) -> (Vec<u32>, Vec<f32>) {
        match mem::replace(&mut self.update, Update::Dense(Vec::new())) {
            Update::Dense(values) => (Vec::new(), values),
            Update::Sparse { positions, values, .. } => (positions, values),
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// A frame whose lengths agree and whose numbers are finite. Its positions have yet to be decoded.
struct Sections<'a> {
    header: Header,
    blocks: ValueBlocks,
    positions: &'a [u8],
    values: &'a [u8],
}

impl<'a> Sections<'a> {
    fn split(frame: &'a [u8], expected_len: usize) -> Result<Self, DecodeError> {
        let (header, rest) = Header::read(frame)?;
        if header.len as usize != expected_len {
            return Err(DecodeError::Length { found: header.len, expected: expected_len });
        }
        let blocks = ValueBlocks::new(&header.spec);
        let chunks = header.chunks();
        let values_bytes = blocks.bytes(chunks.map_or(expected_len, Chunks::kept_total));
        let (need, have) = (HEADER_BYTES + values_bytes, frame.len());
        let positions_bytes =
            rest.len().checked_sub(values_bytes).ok_or(DecodeError::Truncated { need, have })?;
        if chunks.is_none() && positions_bytes > 0 {
            return Err(DecodeError::TrailingBytes { need, have });
        }
        let (positions, values) = rest.split_at(positions_bytes);
        match blocks.split(values).position(|block| !blocks.is_finite(block)) {
            Some(block) => Err(DecodeError::NonFinite { block }),
            None => Ok(Self { header, blocks, positions, values }),
        }
    }

    /// Writes all values, which `out` has room for.
    fn reconstruct(&self, out: &mut [f32]) {
        for (block, out) in self.blocks.split(self.values).zip(out.chunks_mut(self.blocks.block_values)) {
            self.blocks.reconstruct_block(block, out);
        }
    }
}
