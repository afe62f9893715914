//! The memory of a transfer, in wire format.

use super::schedule::Chunk;

const F32_BYTES: usize = size_of::<f32>();

/// Consecutive elements of one kind.
pub(super) trait Memory {
    /// Bytes of an element on the wire.
    const ELEMENT_BYTES: usize;

    fn len(&self) -> usize;

    /// Appends a chunk to a frame.
    fn write_to(&self, chunk: &Chunk, frame: &mut Vec<u8>);

    /// Takes a chunk in. The payload has its length.
    fn read_from(&mut self, chunk: &Chunk, payload: &[u8]);
}

/// f32 values, of which this member contributes a share. Little-endian.
pub(super) struct Values<'a> {
    values: &'a mut [f32],
    share: f32,
}

impl<'a> Values<'a> {
    pub fn new(values: &'a mut [f32], share: f32) -> Self {
        if share == 0.0 {
            // The values may not be finite, and must not matter.
            values.fill(0.0);
        }
        Self { values, share }
    }
}

impl Memory for Values<'_> {
    const ELEMENT_BYTES: usize = F32_BYTES;

    fn len(&self) -> usize {
        self.values.len()
    }

    fn write_to(&self, chunk: &Chunk, frame: &mut Vec<u8>) {
        let start = frame.len();
        frame.resize(start + chunk.range.len() * F32_BYTES, 0);
        let values = &self.values[chunk.range.clone()];
        for (bytes, value) in frame[start..].chunks_exact_mut(F32_BYTES).zip(values) {
            let value = if chunk.contributes { value * self.share } else { *value };
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn read_from(&mut self, chunk: &Chunk, payload: &[u8]) {
        let values = self.values[chunk.range.clone()].iter_mut();
        let (received, _) = payload.as_chunks::<F32_BYTES>();
        for (value, bytes) in values.zip(received) {
            let received = f32::from_le_bytes(*bytes);
            *value = if chunk.contributes { received + *value * self.share } else { received };
        }
    }
}

/// Bytes, unchanged.
pub(super) struct Bytes<'a>(pub &'a mut [u8]);

impl Memory for Bytes<'_> {
    const ELEMENT_BYTES: usize = 1;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn write_to(&self, chunk: &Chunk, frame: &mut Vec<u8>) {
        frame.extend_from_slice(&self.0[chunk.range.clone()]);
    }

    fn read_from(&mut self, chunk: &Chunk, payload: &[u8]) {
        self.0[chunk.range.clone()].copy_from_slice(payload);
    }
}
