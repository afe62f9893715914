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
/// The longest body. It bounds what one stream can make a receiver hold; larger data goes in parts.
pub const FRAME_BODY_BYTES_MAX: u32 = 16 * 1024 * 1024;

const MAGIC: [u8; 3] = *b"LHF";
const VERSION: u8 = 1;
const HASH_OFFSET: usize = 44;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// An update as computed, to the site's uploader of the fragment.
    Local = 1,
    /// A site's compressed update, to the fragment's owner.
    Contribution = 2,
    /// What the owner published, to every member.
    Result = 3,
    /// A part of a member's state, to a worker that catches up.
    State = 4,
    /// What two workers of different sites expand masks from, to the one that did not draw it.
    MaskSecret = 5,
    /// What ranks of a replica tell each other: activations and their gradients. The other fields of its header are theirs to use.
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

/// What a frame is about: everything in its header that its body does not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// What the body is.
    pub kind: FrameKind,
    /// The membership under which it was sent.
    pub generation: Generation,
    /// The round it belongs to.
    pub round: Round,
    /// The fragment it belongs to.
    pub fragment: FragmentId,
    /// Who sent it.
    pub sender: WorkerId,
    /// Samples behind an update.
    pub weight: u32,
    /// Which part, where the data spans several frames.
    pub part: u32,
}

/// A decoded header: the meta data, and the body to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the frame is about.
    pub meta: FrameMeta,
    /// Length of the body, at most [`FRAME_BODY_BYTES_MAX`].
    pub body_len: u32,
    /// The body's name.
    pub body_hash: blake3::Hash,
}

/// A header and the body that it describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    header: FrameHeader,
    body: Bytes,
}

/// Bytes that are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another protocol, or another version of this one.
    #[error("not a bulk frame of version {VERSION}")]
    Magic,
    /// A kind that this version does not know.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// Bytes that must be zero are not.
    #[error("reserved bytes are in use")]
    Reserved,
    /// A body over the limit, announced or offered.
    #[error("a body of {0} bytes; the limit is {FRAME_BODY_BYTES_MAX}")]
    TooLong(u64),
    /// The body has another length than announced.
    #[error("a body of {got} bytes where {announced} were announced")]
    Length {
        /// What the header says.
        announced: u32,
        /// What came.
        got: u64,
    },
    /// The body is not the one that the header names.
    #[error("the body does not have the hash in its header")]
    Hash,
}

impl Frame {
    /// A frame around `body`.
    ///
    /// # Errors
    /// [`FrameError::TooLong`].
    pub fn new(meta: FrameMeta, body: Bytes) -> Result<Self, FrameError> {
        let body_hash = blake3::hash(&body);
        Self::with_known_hash(meta, body, body_hash)
    }

    /// A frame of a body whose BLAKE3 hash is known: a result that is passed on.
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

    /// Puts a received body to its header.
    ///
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Hash`]: the body is not the one announced.
    pub fn assemble(header: FrameHeader, body: Bytes) -> Result<Self, FrameError> {
        if body.len() as u64 != u64::from(header.body_len) {
            return Err(FrameError::Length { announced: header.body_len, got: body.len() as u64 });
        }
        if blake3::hash(&body) != header.body_hash {
            return Err(FrameError::Hash);
        }
        Ok(Self { header, body })
    }

    /// The header.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }

    /// What the frame is about.
    pub fn meta(&self) -> &FrameMeta {
        &self.header.meta
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Takes the frame apart.
    pub fn into_parts(self) -> (FrameHeader, Bytes) {
        (self.header, self.body)
    }
}

impl FrameHeader {
    /// The header's bytes, laid out as the module says.
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

    /// Reads a header and checks all of it, the body's length included, before anything is allocated for it.
    ///
    /// # Errors
    /// Whatever is wrong with it.
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

/// `N` bytes from `offset`; offsets here are constants within the header.
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
            // The first few bytes genuine, so that deep checks are reached as well as shallow ones.
            bytes[5..8].fill(0);
            bytes[genuine..8].copy_from_slice(&prefix[..8 - genuine]);
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert!(header.body_len <= FRAME_BODY_BYTES_MAX);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
