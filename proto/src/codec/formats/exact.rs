//! IEEE 754 single precision.

use super::packing::{all_below, append, read};
use super::{BlockShape, NumberFormat};

/// Unchanged values.
#[derive(Debug)]
pub(super) struct F32;

impl NumberFormat for F32 {
    fn shape(&self) -> BlockShape {
        BlockShape::plain(32)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        append(block, out, |_, value| value.to_le_bytes());
    }

    fn reconstruct(&self, _: &[u8], codes: &[u8], out: &mut [f32]) {
        read(codes, out, f32::from_le_bytes);
    }

    fn is_finite(&self, _: &[u8], codes: &[u8]) -> bool {
        all_below(codes, |code| u32::from_le_bytes(code) & 0x7fff_ffff, 0x7f80_0000)
    }
}
