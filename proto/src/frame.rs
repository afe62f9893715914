//! The frame of bulk data: a fixed header and a body.
//!
//! Layout of the header, little-endian, 76 bytes:
//!
//! | offset | field | | offset | field |
//! | --- | --- | --- | --- | --- |
//! | 0 | magic `LHF` | | 28 | sender u32 |
//! | 3 | version u8 | | 32 | weight u32 |
//! | 4 | kind u8 | | 36 | part u32 |
//! | 5 | zero, 3 bytes | | 40 | body length u32 |
//! | 8 | generation u64 | | 44 | BLAKE3 hash of the body, 32 bytes |
//! | 16 | round u64 | | | |
//! | 24 | fragment u32 | | | |

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

/// Length of a header on the wire.
pub const FRAME_HEADER_BYTES: usize = 76;
/// Maximum body. It bounds the memory that one stream can occupy at a receiver; larger data is split into
/// parts.
pub const FRAME_BODY_BYTES_MAX: u32 = 16 * 1024 * 1024;

const MAGIC: [u8; 3] = *b"LHF";
const VERSION: u8 = 1;
const HASH_OFFSET: usize = 44;

/// Payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// An uncompressed update, to the site's uploader of the fragment.
    Local = 1,
    /// A site's compressed update, to the fragment's owner.
    Contribution = 2,
    /// The owner's published result, to every member.
    Result = 3,
    /// A part of a member's state, to a worker that catches up.
    State = 4,
    /// The secret from which two workers of different sites expand masks, to the one that did not draw it.
    MaskSecret = 5,
    /// Messages between ranks of a replica: activations and their gradients. They define the other fields of
    /// the header.
    Stage = 6,
}

impl TryFrom<u8> for FrameKind {
    type Error = FrameError;

    fn try_from(kind: u8) -> Result<Self, FrameError> {
        match kind {
            1 => Ok(Self::Local),
            2 => Ok(Self::Contribution),
            3 => Ok(Self::Result),
            4 => Ok(Self::State),
            5 => Ok(Self::MaskSecret),
            6 => Ok(Self::Stage),
            unknown => Err(FrameError::Kind(unknown)),
        }
    }
}

/// Header fields that the body does not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// Kind of the body.
    pub kind: FrameKind,
    /// Generation of the sender's membership.
    pub generation: Generation,
    /// Round.
    pub round: Round,
    /// Fragment.
    pub fragment: FragmentId,
    /// Sender.
    pub sender: WorkerId,
    /// Samples behind an update.
    pub weight: u32,
    /// Part, if the data spans several frames.
    pub part: u32,
}

/// A decoded header: meta data, and the expected body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Meta data.
    pub meta: FrameMeta,
    /// Length of the body, at most [`FRAME_BODY_BYTES_MAX`].
    pub body_len: u32,
    /// Hash of the body.
    pub body_hash: blake3::Hash,
}

/// A header with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    header: FrameHeader,
    body: Bytes,
}

/// Bytes that are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol, or another version.
    #[error("not a bulk frame of version {VERSION}")]
    Magic,
    /// Unknown kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// Reserved bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A body over the limit, announced or to be sent.
    #[error("a body of {0} bytes exceeds the limit of {FRAME_BODY_BYTES_MAX}")]
    TooLong(u64),
    /// The body's length differs from the announced one.
    #[error("received a body of {got} bytes; {announced} were announced")]
    Length {
        /// Length in the header.
        announced: u32,
        /// Length received.
        got: u64,
    },
    /// The body's hash differs from the header's.
    #[error("the body does not have the hash in its header")]
    Hash,
}

impl Frame {
    /// Creates a frame of `body`.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn new(meta: FrameMeta, body: Bytes) -> Result<Self, FrameError> {
        let body_hash = blake3::hash(&body);
        Self::with_known_hash(meta, body, body_hash)
    }

    /// Creates a frame of a body with a known BLAKE3 hash, such as a forwarded result.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn with_known_hash(
        meta: FrameMeta,
        body: Bytes,
        body_hash: blake3::Hash,
    ) -> Result<Self, FrameError> {
        let body_len = u32::try_from(body.len())
            .ok()
            .filter(|len| *len <= FRAME_BODY_BYTES_MAX)
            .ok_or(FrameError::TooLong(body.len() as u64))?;
        Ok(Self { header: FrameHeader { meta, body_len, body_hash }, body })
    }

    /// Combines a header and a received body.
    ///
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Hash`]: the body differs from the announced one.
    pub fn assemble(header: FrameHeader, body: Bytes) -> Result<Self, FrameError> {
        if body.len() as u64 != u64::from(header.body_len) {
            return Err(FrameError::Length { announced: header.body_len, got: body.len() as u64 });
        }
        if blake3::hash(&body) != header.body_hash {
            return Err(FrameError::Hash);
        }
        Ok(Self { header, body })
    }

    /// Returns the header.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// Returns the meta data.
    pub fn meta(&self) -> &FrameMeta {
        &self.header.meta
    }

    /// Returns the body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Splits the frame.
    pub fn into_parts(self) -> (FrameHeader, Bytes) {
        (self.header, self.body)
    }
}

impl FrameHeader {
    /// Returns the header's bytes, in the layout of this module's documentation.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let meta = &self.meta;
        let mut out = [0; FRAME_HEADER_BYTES];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = VERSION;
        out[4] = meta.kind as u8;
        out[8..16].copy_from_slice(&meta.generation.0.to_le_bytes());
        out[16..24].copy_from_slice(&meta.round.0.to_le_bytes());
        let words = [meta.fragment.0, meta.sender.0, meta.weight, meta.part, self.body_len];
        for (slot, word) in out[24..HASH_OFFSET].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        out[HASH_OFFSET..].copy_from_slice(self.body_hash.as_bytes());
        out
    }

    /// Decodes and checks a header, including the body's length, before any allocation for it.
    ///
    /// # Errors
    /// [`FrameError`] describes the fault.
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        if bytes[..3] != MAGIC || bytes[3] != VERSION {
            return Err(FrameError::Magic);
        }
        let kind = FrameKind::try_from(bytes[4])?;
        if bytes[5..8] != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let body_len = u32::from_le_bytes(array(bytes, 40));
        if body_len > FRAME_BODY_BYTES_MAX {
            return Err(FrameError::TooLong(u64::from(body_len)));
        }
        let meta = FrameMeta {
            kind,
            generation: Generation(u64::from_le_bytes(array(bytes, 8))),
            round: Round(u64::from_le_bytes(array(bytes, 16))),
            fragment: FragmentId(u32::from_le_bytes(array(bytes, 24))),
            sender: WorkerId(u32::from_le_bytes(array(bytes, 28))),
            weight: u32::from_le_bytes(array(bytes, 32)),
            part: u32::from_le_bytes(array(bytes, 36)),
        };
        Ok(Self { meta, body_len, body_hash: blake3::Hash::from_bytes(array(bytes, HASH_OFFSET)) })
    }
}

/// Returns `N` bytes from `offset`, a constant within the header.
fn array<const N: usize>(bytes: &[u8; FRAME_HEADER_BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meta(kind: FrameKind) -> FrameMeta {
        FrameMeta {
            kind,
            generation: Generation(0x0102_0304_0506_0708),
            round: Round(9),
            fragment: FragmentId(10),
            sender: WorkerId(11),
            weight: 12,
            part: 13,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_header_has_its_golden_bytes() {
        let frame = Frame::new(meta(FrameKind::Result), Bytes::from_static(b"abc")).unwrap();
        let expected = concat!(
            "4c4846",
            "01",
            "03",
            "000000",
            "0807060504030201",
            "0900000000000000",
            "0a000000",
            "0b000000",
            "0c000000",
            "0d000000",
            "03000000",
            // BLAKE3 of "abc", from the reference implementation's test vectors.
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        );
        assert_eq!(hex(&frame.header().encode()), expected);
    }

    #[test]
    fn a_header_that_lies_is_refused_by_name() {
        let good = Frame::new(meta(FrameKind::Local), Bytes::from_static(b"abc")).unwrap().header().encode();
        let with = |offset: usize, value: u8| {
            let mut bytes = good;
            bytes[offset] = value;
            FrameHeader::decode(&bytes)
        };
        assert_eq!(with(0, b'X'), Err(FrameError::Magic));
        assert_eq!(with(3, 2), Err(FrameError::Magic));
        assert_eq!(with(4, 0), Err(FrameError::Kind(0)));
        assert_eq!(with(4, 7), Err(FrameError::Kind(7)));
        assert_eq!(with(6, 1), Err(FrameError::Reserved));
        assert_eq!(with(43, 0xff), Err(FrameError::TooLong(0xff00_0003)));
    }

    #[test]
    fn a_body_other_than_the_announced_one_is_refused() {
        let (header, _) =
            Frame::new(meta(FrameKind::Local), Bytes::from_static(b"abc")).unwrap().into_parts();
        let other = Frame::assemble(header, Bytes::from_static(b"abd"));
        assert_eq!(other, Err(FrameError::Hash));
        let short = Frame::assemble(header, Bytes::from_static(b"ab"));
        assert_eq!(short, Err(FrameError::Length { announced: 3, got: 2 }));
    }

    #[test]
    fn a_body_over_the_limit_makes_no_frame() {
        let len = FRAME_BODY_BYTES_MAX as usize + 1;
        let frame = Frame::new(meta(FrameKind::State), Bytes::from(vec![0; len]));
        assert_eq!(frame, Err(FrameError::TooLong(len as u64)));
    }

    proptest! {
        #[test]
        fn any_frame_survives_the_wire(
            kind in 1_u8..=6, numbers in any::<(u64, u64, u32, u32, u32, u32)>(), body in any::<Vec<u8>>(),
        ) {
            let (generation, round, fragment, sender, weight, part) = numbers;
            let meta = FrameMeta {
                kind: FrameKind::try_from(kind).unwrap(),
                generation: Generation(generation),
                round: Round(round),
                fragment: FragmentId(fragment),
                sender: WorkerId(sender),
                weight,
                part,
            };
            let frame = Frame::new(meta, Bytes::from(body)).unwrap();
            let header = FrameHeader::decode(&frame.header().encode()).unwrap();
            prop_assert_eq!(Frame::assemble(header, frame.body().clone()).unwrap(), frame);
        }

        #[test]
        fn any_bytes_decode_to_a_bounded_header_or_an_error(
            prefix in prop::collection::vec(any::<u8>(), 71), genuine in 0_usize..=8,
        ) {
            let mut bytes = [0; FRAME_HEADER_BYTES];
            bytes[5..].copy_from_slice(&prefix);
            bytes[..5].copy_from_slice(b"LHF\x01\x02");
            // The first bytes are valid, so that later checks are reached too.
            bytes[5..8].fill(0);
            bytes[genuine..8].copy_from_slice(&prefix[..8 - genuine]);
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert!(header.body_len <= FRAME_BODY_BYTES_MAX);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
