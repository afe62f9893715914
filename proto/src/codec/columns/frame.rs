//! Encoding of column updates as frames.

use super::{ColumnPart, ColumnUpdate, MatrixStretch, value_count};
use crate::codec::code_stream::{CodeDecoder, CodeEncoder};
use crate::codec::formats;
use crate::codec::header::{Coding, VERSION};
use crate::codec::layout::Layout;
use crate::codec::positions::{self, PositionEncoder};
use crate::codec::random::Noise;
use crate::codec::reader::Reader;
use crate::codec::value_blocks::ValueBlocks;
use crate::codec::{CodecSpec, DecodeError, EncodeError, FRAGMENT_VALUES_MAX, Rounding, Selection};

/// Marks columns in the byte of the selection.
pub(in crate::codec) const TAG: u8 = 3;

/// Maximum matrices that overlap a fragment: more than the deepest models have in total.
const PARTS_MAX: usize = 1 << 16;

/// Maximum columns of all matrices of a fragment: each has at least one of the fragment's values.
const COLUMNS_MAX: u64 = FRAGMENT_VALUES_MAX as u64;

const PACKED: u8 = 0;
const ENTROPY: u8 = 1;

/// Encodes frames of columns; reuses its memory.
#[derive(Debug)]
pub(in crate::codec) struct ColumnEncoder {
    positions: PositionEncoder,
    codes: CodeEncoder,
    section: Vec<u8>,
    coded: Vec<u8>,
}

impl ColumnEncoder {
    pub fn new() -> Self {
        Self {
            positions: PositionEncoder::new(),
            codes: CodeEncoder::default(),
            section: Vec::new(),
            coded: Vec::new(),
        }
    }

    /// Appends the frame of an update and returns its values as the receiver will decode them.
    pub fn encode(
        &mut self,
        spec: &CodecSpec,
        seed: u64,
        update: &ColumnUpdate,
        out: &mut Vec<u8>,
    ) -> Result<Vec<f32>, EncodeError> {
        check(update)?;
        let blocks = ValueBlocks::new(Selection::All, spec.values);
        let layout = Layout::All { len: update.values.len() };
        let noise = (spec.rounding == Rounding::Stochastic).then(|| Noise::new(seed));
        self.section.clear();
        blocks.quantise(&update.values, noise, &mut self.section);
        let codes = formats::of(spec.values).shape().codes.filter(|_| spec.entropy);
        let coding = match codes {
            Some(codes) => self.codes.encode(codes, blocks, layout, &self.section, &mut self.coded),
            None => Coding::Packed,
        };
        self.write_head(spec, update, coding, out);
        out.extend_from_slice(if coding == Coding::Packed { &self.section } else { &self.coded });
        let mut sent = vec![0.0; update.values.len()];
        blocks.reconstruct(&self.section, &mut sent);
        Ok(sent)
    }

    fn write_head(&mut self, spec: &CodecSpec, update: &ColumnUpdate, coding: Coding, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, TAG, formats::wire_tag(spec.values), 0]);
        out.extend_from_slice(&update.len.to_le_bytes());
        let (space, positions) = positions_of(&update.parts);
        out.extend_from_slice(&(positions.len() as u32).to_le_bytes());
        let (coded, bytes) = match coding {
            Coding::Packed => (PACKED, None),
            Coding::Entropy { bytes, .. } => (ENTROPY, Some(bytes)),
        };
        out.extend_from_slice(&[0, coded]);
        out.extend(bytes.into_iter().flat_map(u32::to_le_bytes));
        out.extend_from_slice(&(update.parts.len() as u32).to_le_bytes());
        update.parts.iter().for_each(|part| write_stretch(&part.stretch, out));
        let kept = positions.len();
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.positions.encode(Layout::Scattered { len: space as usize, kept, most: kept }, &positions, out);
        let bytes = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
    }
}

/// Rejects an update that cannot be sent.
fn check(update: &ColumnUpdate) -> Result<(), EncodeError> {
    let len = update.len();
    let columns: u64 = update.parts.iter().map(|part| u64::from(part.stretch.columns)).sum();
    if len > FRAGMENT_VALUES_MAX || update.parts.len() > PARTS_MAX || columns > COLUMNS_MAX {
        return Err(EncodeError::TooLong { len });
    }
    let mut bad = None;
    update.for_each(|index, value| bad = bad.or((!value.is_finite()).then_some(index)));
    bad.map_or(Ok(()), |index| Err(EncodeError::NonFinite { index }))
}

/// Numbers the columns of all matrices consecutively: returns their count and the changed ones.
fn positions_of(parts: &[ColumnPart]) -> (u32, Vec<u32>) {
    let mut positions = Vec::new();
    let mut base = 0;
    for ColumnPart { stretch, columns } in parts {
        positions.extend(columns.iter().map(|column| base + column));
        base += stretch.columns;
    }
    (base, positions)
}

fn write_stretch(stretch: &MatrixStretch, out: &mut Vec<u8>) {
    let MatrixStretch { start, len, offset, columns, rows, by_column } = *stretch;
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(&columns.to_le_bytes());
    out.extend_from_slice(&rows.to_le_bytes());
    out.push(u8::from(by_column));
}

fn read_stretch(reader: &mut Reader<'_>) -> Option<MatrixStretch> {
    let (start, len, offset) = (reader.u32()?, reader.u32()?, reader.u64()?);
    let (columns, rows, layout) = (reader.u32()?, reader.u32()?, reader.u8()?);
    (len > 0 && columns > 0 && rows > 0 && layout <= 1).then_some(MatrixStretch {
        start,
        len,
        offset,
        columns,
        rows,
        by_column: layout == 1,
    })
}

/// Decodes frames of columns; reuses its memory.
#[derive(Debug)]
pub(in crate::codec) struct ColumnDecoder {
    positions: Vec<u32>,
    codes: CodeDecoder,
}

impl ColumnDecoder {
    pub const fn new() -> Self {
        Self { positions: Vec::new(), codes: CodeDecoder::new() }
    }

    /// Decodes a frame with [`TAG`] into an update of `expected_len` values.
    pub fn decode(&mut self, frame: &[u8], expected_len: usize) -> Result<ColumnUpdate, DecodeError> {
        let truncated = DecodeError::Truncated { need: frame.len() + 1, have: frame.len() };
        let mut reader = Reader { rest: frame };
        let head = Head::read(&mut reader, expected_len)?;
        let bytes = reader.u32().ok_or(truncated.clone())? as usize;
        let (stream, section) = reader.rest.split_at_checked(bytes).ok_or(truncated)?;
        let layout = Layout::Scattered { len: head.space as usize, kept: head.kept, most: head.kept };
        positions::decode(layout, stream, &mut self.positions)?;
        let len = expected_len as u32;
        let parts = parts_of(&head.stretches, &self.positions);
        let count = value_count(len, &parts).ok_or(DecodeError::Columns)?;
        let blocks = ValueBlocks::new(Selection::All, head.format);
        let packed = match (head.coding, formats::of(head.format).shape().codes) {
            (PACKED, _) => exactly(section, blocks.bytes(count), frame.len())?,
            (_, Some(codes)) => {
                let coded = exactly(section, head.coded_bytes, frame.len())?;
                self.codes.decode(codes, blocks, Layout::All { len: count }, coded)?
            }
            (unknown, None) => return Err(DecodeError::Coding(unknown)),
        };
        if let Some(block) = blocks.first_not_finite(packed) {
            return Err(DecodeError::NonFinite { block });
        }
        let mut values = vec![0.0; count];
        blocks.reconstruct(packed, &mut values);
        Ok(ColumnUpdate { len, parts, values })
    }
}

/// Header of a frame, before its columns.
struct Head {
    format: crate::codec::ValueFormat,
    coding: u8,
    coded_bytes: usize,
    stretches: Vec<MatrixStretch>,
    /// Columns of all matrices, and the changed ones.
    space: u32,
    kept: usize,
}

impl Head {
    fn read(reader: &mut Reader<'_>, expected_len: usize) -> Result<Self, DecodeError> {
        let have = reader.rest.len();
        let truncated = || DecodeError::Truncated { need: have + 1, have };
        let [version, _, format, zero] = reader.u32().ok_or_else(truncated)?.to_le_bytes();
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let format = formats::of_wire_tag(format).ok_or(DecodeError::ValueFormat(format))?;
        let (found, kept) =
            (reader.u32().ok_or_else(truncated)?, reader.u32().ok_or_else(truncated)? as usize);
        if found as usize != expected_len {
            return Err(DecodeError::Length { found, expected: expected_len });
        }
        let (stage, coding) = (reader.u8().ok_or_else(truncated)?, reader.u8().ok_or_else(truncated)?);
        if stage != 0 || zero != 0 {
            return Err(DecodeError::Stage(stage));
        }
        if coding > ENTROPY {
            return Err(DecodeError::Coding(coding));
        }
        let coded_bytes = if coding == ENTROPY { reader.u32().ok_or_else(truncated)? as usize } else { 0 };
        let count = reader.u32().ok_or_else(truncated)? as usize;
        if count > PARTS_MAX.min(expected_len) {
            return Err(DecodeError::Columns);
        }
        // Each entry takes bytes of the frame, and each column a value of the fragment.
        let mut stretches = Vec::with_capacity(count.min(have / STRETCH_BYTES));
        for _ in 0..count {
            stretches.push(read_stretch(reader).ok_or(DecodeError::Columns)?);
        }
        let space: u64 = stretches.iter().map(|stretch| u64::from(stretch.columns)).sum();
        if space > COLUMNS_MAX || kept > expected_len.min(space as usize) {
            return Err(DecodeError::Columns);
        }
        Ok(Self { format, coding, coded_bytes, stretches, space: space as u32, kept })
    }
}

/// Bytes of a matrix in a frame.
const STRETCH_BYTES: usize = 25;

fn parts_of(stretches: &[MatrixStretch], positions: &[u32]) -> Vec<ColumnPart> {
    let (mut base, mut rest) = (0, positions);
    let part = |stretch: &MatrixStretch| {
        let end = base + stretch.columns;
        let (own, after) = rest.split_at(rest.partition_point(|position| *position < end));
        let columns = own.iter().map(|position| position - base).collect();
        (base, rest) = (end, after);
        ColumnPart { stretch: *stretch, columns }
    };
    stretches.iter().map(part).collect()
}

/// Returns a section of exactly `bytes` bytes.
fn exactly(section: &[u8], bytes: usize, have: usize) -> Result<&[u8], DecodeError> {
    let need = have + bytes - section.len().min(have + bytes);
    match section.len() {
        len if len < bytes => Err(DecodeError::Truncated { need, have }),
        len if len > bytes => Err(DecodeError::TrailingBytes { need, have }),
        _ => Ok(section),
    }
}
