//! Decoding of frames into fragments.

use std::mem;

use super::code_stream::CodeDecoder;
use super::columns::ColumnDecoder;
use super::header::{Coding, Header};
use super::layout::Layout;
use super::stages::{Effect, LeadingStage, Stage};
use super::update::add_scaled;
use super::value_blocks::ValueBlocks;
use super::{DecodeError, Update, columns, positions};

/// Decodes frames of any specification. One decoder serves any number of frames in turn and allocates only
/// for a frame larger than all before.
///
/// No input makes it panic. It holds at most about twenty bytes per value of the longest fragment expected.
#[derive(Debug)]
pub struct Decoder {
    /// Last decoded update; its memory is reused.
    update: Update,
    /// Memory for the other kind of update, and for values before the inverse transform.
    positions: Vec<u32>,
    values: Vec<f32>,
    dense: Vec<f32>,
    /// Positions chosen by the leading stage.
    mask: Vec<u32>,
    codes: CodeDecoder,
    columns: ColumnDecoder,
}

impl Decoder {
    /// Creates a decoder without memory.
    pub const fn new() -> Self {
        Self {
            update: Update::Dense(Vec::new()),
            positions: Vec::new(),
            values: Vec::new(),
            dense: Vec::new(),
            mask: Vec::new(),
            codes: CodeDecoder::new(),
            columns: ColumnDecoder::new(),
        }
    }

    /// Decodes a frame into an update of `expected_len` values.
    ///
    /// # Errors
    /// [`DecodeError`] describes the fault of the frame.
    pub fn decode(&mut self, frame: &[u8], expected_len: usize) -> Result<&Update, DecodeError> {
        if is_of_columns(frame) {
            self.update = Update::Columns(self.columns.decode(frame, expected_len)?);
            return Ok(&self.update);
        }
        let sections = Sections::split(frame, expected_len)?;
        self.read(&sections)?;
        Ok(&self.update)
    }

    /// Adds `weight` times the frame's update to `accumulator`. The result equals [`Decoder::decode`] and
    /// [`Update::add_scaled_to`] bit by bit, without a dense copy unless the frame has a transform.
    ///
    /// # Errors
    /// [`DecodeError`] describes the fault of the frame; `accumulator` is then unchanged.
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
        if is_of_columns(frame) {
            let update = self.columns.decode(frame, expected_len)?;
            update.for_each(|at, value| accumulator[at] += weight * value);
            return Ok(());
        }
        let sections = Sections::split(frame, expected_len)?;
        if sections.header.stage.is_some() || sections.layout.is_selected() {
            self.read(&sections)?;
            self.update.add_scaled_to(weight, accumulator);
            return Ok(());
        }
        let blocks = sections.blocks;
        let packed = sections.packed_values(&mut self.codes)?;
        self.values.resize(blocks.block_values, 0.0);
        for (block, sums) in blocks.split(packed).zip(accumulator.chunks_mut(blocks.block_values)) {
            let values = &mut self.values[..sums.len()];
            blocks.reconstruct_block(block, values);
            add_scaled(values, weight, sums);
        }
        Ok(())
    }

    /// Decodes the frame into `update`.
    fn read(&mut self, sections: &Sections<'_>) -> Result<(), DecodeError> {
        self.take_memory_back();
        let Sections { header, layout, blocks, .. } = sections;
        let packed = sections.packed_values(&mut self.codes)?;
        let len = header.len as usize;
        let is_selected = layout.is_selected();
        if is_selected {
            positions::decode(*layout, sections.positions, &mut self.positions)?;
        }
        let stage = header.stage.as_ref().map(Stage::as_leading);
        if let Some(stage) = stage
            && stage.effect() == Effect::Chooses
        {
            self.mask.clear();
            stage.choose(header.seed, len, &mut self.mask);
            if is_selected {
                self.positions.iter_mut().for_each(|position| *position = self.mask[*position as usize]);
            } else {
                mem::swap(&mut self.positions, &mut self.mask);
            }
        } else if !is_selected {
            self.dense.resize(len, 0.0);
            blocks.reconstruct(packed, &mut self.dense);
            return self.finish_dense(stage);
        }
        self.values.clear();
        self.values.reserve(layout.kept_most());
        self.values.resize(layout.kept_total(), 0.0);
        blocks.reconstruct(packed, &mut self.values);
        if let Some(stage) = stage
            && stage.effect() == Effect::Transforms
        {
            self.dense.clear();
            self.dense.resize(len, 0.0);
            for (&position, &value) in self.positions.iter().zip(&self.values) {
                self.dense[position as usize] = value;
            }
            return self.finish_dense(Some(stage));
        }
        let (positions, values) = (mem::take(&mut self.positions), mem::take(&mut self.values));
        self.update = Update::Sparse { len: header.len, positions, values };
        Ok(())
    }

    /// Applies the inverse transform, if any, and makes a dense update.
    fn finish_dense(&mut self, transform: Option<&dyn LeadingStage>) -> Result<(), DecodeError> {
        if let Some(stage) = transform {
            stage.inverse(&mut self.dense);
            if let Some(index) = self.dense.iter().position(|value| !value.is_finite()) {
                return Err(DecodeError::Overflow { index });
            }
        }
        self.update = Update::Dense(mem::take(&mut self.dense));
        Ok(())
    }

    fn take_memory_back(&mut self) {
        match mem::replace(&mut self.update, Update::Dense(Vec::new())) {
            Update::Dense(values) if values.capacity() > self.dense.capacity() => self.dense = values,
            Update::Dense(_) | Update::Columns(_) => {}
            Update::Sparse { positions, values, .. } => (self.positions, self.values) = (positions, values),
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

fn is_of_columns(frame: &[u8]) -> bool {
    frame.get(1) == Some(&columns::TAG)
}

/// A frame of consistent lengths. Its values may still be non-finite, and its positions are not decoded yet.
struct Sections<'a> {
    header: Header,
    layout: Layout,
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
        let layout = header.layout()?;
        let blocks = ValueBlocks::new(header.selection, header.values);
        let values_bytes = match header.coding {
            Coding::Packed => blocks.bytes(layout.kept_total()),
            Coding::Entropy { bytes, .. } => bytes as usize,
        };
        let (need, have) = (frame.len() - rest.len() + values_bytes, frame.len());
        let positions_bytes =
            rest.len().checked_sub(values_bytes).ok_or(DecodeError::Truncated { need, have })?;
        if !layout.is_selected() && positions_bytes > 0 {
            return Err(DecodeError::TrailingBytes { need, have });
        }
        let (positions, values) = rest.split_at(positions_bytes);
        Ok(Self { header, layout, blocks, positions, values })
    }

    /// Returns the value section as packed blocks after checking that all values are finite.
    fn packed_values<'b>(&'b self, decoder: &'b mut CodeDecoder) -> Result<&'b [u8], DecodeError> {
        let packed = match self.header.coding {
            Coding::Packed => self.values,
            Coding::Entropy { codes, .. } => decoder.decode(codes, self.blocks, self.layout, self.values)?,
        };
        match self.blocks.first_not_finite(packed) {
            Some(block) => Err(DecodeError::NonFinite { block }),
            None => Ok(packed),
        }
    }
}
