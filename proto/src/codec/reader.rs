//! Field-by-field reading of a header.

/// The remaining bytes. A read past the end returns `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    pub rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
