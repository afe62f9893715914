//! IEEE 754 single precision.

use super::packing::{all_below, append, read};
use super::{NumberFormat, PLAIN_BLOCK_VALUES};

/// Values as they are.
#[derive(Debug)]
pub(super) struct F32;

impl NumberFormat for F32 {
    fn code_bits(&self) -> usize {
        32
    }

    fn block_values(&self) -> Option<usize> {
        Some(PLAIN_BLOCK_VALUES)
    }

    fn quantise(&self, block: &[f32], _: &mut Vec<u32>, out: &mut Vec<u8>) {
        append(block, out, |_, value| value.to_le_bytes());
    }

    fn reconstruct(&self, _: &[u8], codes: &[u8], out: &mut [f32]) {
        read(codes, out, f32::from_le_bytes);
    }

    fn is_finite(&self, _: &[u8], codes: &[u8]) -> bool {
        all_below(codes, |code| u32::from_le_bytes(code) & 0x7fff_ffff, 0x7f80_0000)
    }
}
