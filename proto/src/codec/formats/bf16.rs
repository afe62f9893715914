//! bfloat16.

use super::packing::{all_below, append, read};
use super::scales::bf16_saturating;
use super::{BlockShape, NumberFormat};

/// The nearest finite bf16, ties to even.
#[derive(Debug)]
pub(super) struct Bf16;

impl NumberFormat for Bf16 {
    fn shape(&self) -> BlockShape {
        BlockShape::plain(16)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        append(block, out, |_, value| bf16_saturating(value).to_le_bytes());
    }

    fn reconstruct(&self, _: &[u8], codes: &[u8], out: &mut [f32]) {
        read(codes, out, |code| f32::from_bits(u32::from(u16::from_le_bytes(code)) << 16));
    }

    fn is_finite(&self, _: &[u8], codes: &[u8]) -> bool {
        all_below(codes, |code| u16::from_le_bytes(code) & 0x7fff, 0x7f80)
    }
}
