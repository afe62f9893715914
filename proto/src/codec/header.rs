//! The first bytes of a frame.

use super::chunks::Chunks;
use super::{CodecSpec, DecodeError, Selection, ValueFormat};

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 12;

const VERSION: u8 = 1;
const SELECTION_ALL: u8 = 0;
const SELECTION_TOP_K: u8 = 1;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub spec: CodecSpec,
    /// Values in the fragment.
    pub len: u32,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let (tag, chunk_log2, keep) = match self.spec.selection {
            Selection::All => (SELECTION_ALL, 0, 0),
            Selection::TopK { chunk, keep } => (SELECTION_TOP_K, chunk.trailing_zeros() as u8, keep),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&[VERSION, tag, self.spec.values.wire_tag(), chunk_log2]);
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(&keep.to_le_bytes());
        bytes
    }

    /// Reads the header and returns it with the bytes that follow.
    pub fn read(frame: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((&[version, tag, values, chunk_log2, l0, l1, l2, l3, k0, k1, k2, k3], rest)) =
            frame.split_first_chunk::<HEADER_BYTES>()
        else {
            return Err(DecodeError::Truncated { need: HEADER_BYTES, have: frame.len() });
        };
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let keep = u32::from_le_bytes([k0, k1, k2, k3]);
        let invalid = DecodeError::Chunk { chunk_log2, keep };
        let selection = match tag {
            SELECTION_ALL if chunk_log2 == 0 && keep == 0 => Selection::All,
            SELECTION_ALL => return Err(invalid),
            SELECTION_TOP_K => {
                let chunk = 1_u32.checked_shl(chunk_log2.into()).ok_or(invalid.clone())?;
                Selection::TopK { chunk, keep }
            }
            unknown => return Err(DecodeError::Selection(unknown)),
        };
        let values = ValueFormat::from_wire_tag(values).ok_or(DecodeError::ValueFormat(values))?;
        let spec = CodecSpec { selection, values };
        spec.validate().map_err(|_| invalid)?;
        Ok((Self { spec, len: u32::from_le_bytes([l0, l1, l2, l3]) }, rest))
    }

    /// The chunks that positions refer to; none when all values are sent.
    pub fn chunks(&self) -> Option<Chunks> {
        match self.spec.selection {
            Selection::All => None,
            Selection::TopK { chunk, keep } => {
                Some(Chunks { len: self.len as usize, chunk: chunk as usize, keep: keep as usize })
            }
        }
    }
}
