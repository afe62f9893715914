//! Frames between neighbours.

use std::fmt::{self, Display, Formatter};

/// Most bytes of a frame's payload. 256 KiB fill a 10 Gb/s link for 0.2 ms, ten times the cost of passing a frame between threads; yet the pipeline round a
/// ring of 8 fills in 2 ms, and a frame and its sum fit a core's cache.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 32;

/// Position of a frame. The receiver knows the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the transfer on this ring.
    pub sequence: u64,
    /// Position of the payload, in elements.
    pub offset: u64,
    /// Elements of the whole transfer.
    pub total: u64,
    /// Length of the payload, in bytes.
    pub payload: u32,
    /// A [`Kind`].
    pub kind: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Agree = 1,
    Reduce,
    Gather,
    Broadcast,
}

impl Header {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.total.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.payload.to_le_bytes());
        bytes[28] = self.kind;
        bytes
    }

    /// `None`: it announces more than a frame may hold.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let payload = u32::from_le_bytes(std::array::from_fn(|i| bytes[24 + i]));
        let header = Self { sequence: long(0), offset: long(8), total: long(16), payload, kind: bytes[28] };
        (payload as usize <= CHUNK_BYTES).then_some(header)
    }
}

impl Display for Header {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { sequence, offset, total, payload, kind } = self;
        write!(f, "transfer {sequence} of kind {kind}: {payload} bytes at element {offset} of {total}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_has_its_golden_form() {
        let header = Header { sequence: 1, offset: 0x0203, total: 0x04_0506, payload: 7, kind: 2 };
        let hex: String = header.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0100000000000000030200000000000006050400000000000700000002000000");
    }

    proptest! {
        #[test]
        fn headers_survive_their_bytes_and_long_payloads_are_refused(
            sequence: u64, offset: u64, total: u64, payload: u32, kind: u8,
        ) {
            let header = Header { sequence, offset, total, payload, kind };
            let read = Header::from_bytes(&header.to_bytes());
            prop_assert_eq!(read, (payload as usize <= CHUNK_BYTES).then_some(header));
        }
    }
}
