//! Header of a frame.

use super::formats::{self, Codes};
use super::layout::Layout;
use super::reader::Reader;
use super::selections::Shape;
use super::{DecodeError, Selection, Stage, ValueFormat};

/// Minimum bytes of a header.
const HEADER_BYTES_MIN: usize = 14;

/// Version of the frames that this code reads and writes.
pub(super) const VERSION: u8 = 3;

const NO_STAGE: u8 = 0;

const CODING_PACKED: u8 = 0;
const CODING_ENTROPY: u8 = 1;

/// Coding of the value section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Blocks, each with its scales and packed codes.
    Packed,
    /// All scales, then the codes in an entropy-coded stream.
    Entropy {
        /// Codes in the stream.
        codes: Codes,
        /// Bytes of the section.
        bytes: u32,
    },
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub stage: Option<Stage>,
    pub selection: Selection,
    pub values: ValueFormat,
    pub coding: Coding,
    /// Values in the fragment.
    pub len: u32,
    /// Seed of the stage, if it uses one.
    pub seed: u64,
    /// Values selected, if the number depends on the values.
    pub count: u32,
}

impl Header {
    pub fn write(&self, out: &mut Vec<u8>) {
        let Shape { chunk_log2, keep } = self.selection.as_rule().shape();
        out.extend_from_slice(&[
            VERSION,
            self.selection.wire_tag(),
            formats::wire_tag(self.values),
            chunk_log2,
        ]);
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&keep.to_le_bytes());
        let coding = match self.coding {
            Coding::Packed => CODING_PACKED,
            Coding::Entropy { .. } => CODING_ENTROPY,
        };
        out.extend_from_slice(&[self.stage.map_or(NO_STAGE, Stage::wire_tag), coding]);
        if let Some(stage) = &self.stage {
            let stage = stage.as_leading();
            stage.write(out);
            if stage.is_seeded() {
                out.extend_from_slice(&self.seed.to_le_bytes());
            }
        }
        if self.selection.as_rule().is_counted() {
            out.extend_from_slice(&self.count.to_le_bytes());
        }
        if let Coding::Entropy { bytes, .. } = self.coding {
            out.extend_from_slice(&bytes.to_le_bytes());
        }
    }

    /// Reads the header; returns it with the remaining bytes.
    pub fn read(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((&[version, tag, values, chunk_log2, l0, l1, l2, l3, k0, k1, k2, k3, stage, coding], rest)) =
            frame.split_first_chunk::<HEADER_BYTES_MIN>()
        else {
            // A frame of an older version may be shorter than this header.
            return match frame.first() {
                Some(&version) if version != VERSION => Err(DecodeError::Version(version)),
                _ => Err(DecodeError::Truncated { need: HEADER_BYTES_MIN, have: frame.len() }),
            };
        };
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let shape = Shape { chunk_log2, keep: u32::from_le_bytes([k0, k1, k2, k3]) };
        let selection = Selection::read(tag, shape)?;
        let values = formats::of_wire_tag(values).ok_or(DecodeError::ValueFormat(values))?;
        let truncated = || DecodeError::Truncated { need: frame.len() + 1, have: frame.len() };
        let mut reader = Reader { rest };
        let (stage, seed) = read_stage(stage, &mut reader)?;
        let count = match selection.as_rule().is_counted() {
            true => reader.u32().ok_or_else(truncated)?,
            false => 0,
        };
        let coding = match (coding, formats::of(values).shape().codes) {
            (CODING_PACKED, _) => Coding::Packed,
            (CODING_ENTROPY, Some(codes)) => {
                Coding::Entropy { codes, bytes: reader.u32().ok_or_else(truncated)? }
            }
            (unknown, _) => return Err(DecodeError::Coding(unknown)),
        };
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        Ok((Self { stage, selection, values, coding, len, seed, count }, reader.rest))
    }

    /// Returns the values in the frame, of those that the stage passes.
    pub fn layout(&self) -> Result<Layout, DecodeError> {
        let len = self.len as usize;
        let seen = match &self.stage {
            None => len,
            Some(stage) => stage.as_leading().seen_len(len).ok_or(DecodeError::Stage(stage.wire_tag()))?,
        };
        let invalid = DecodeError::Count { count: self.count, seen };
        self.selection.as_rule().layout(seen, self.count as usize).ok_or(invalid)
    }
}

/// Reads the stage's parameters and seed.
fn read_stage(tag: u8, reader: &mut Reader<'_>) -> Result<(Option<Stage>, u64), DecodeError> {
    if tag == NO_STAGE {
        return Ok((None, 0));
    }
    let invalid = DecodeError::Stage(tag);
    let stage = Stage::read(tag, reader).ok_or(invalid.clone())?;
    let seed = if stage.as_leading().is_seeded() { reader.u64().ok_or(invalid)? } else { 0 };
    Ok((Some(stage), seed))
}
