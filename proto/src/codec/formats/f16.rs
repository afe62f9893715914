//! IEEE 754 half precision.

use half::f16;

use super::packing::{all_below, append, read};
use super::{BlockShape, NumberFormat};

/// The nearest finite f16, ties to even.
#[derive(Debug)]
pub(super) struct F16;

impl NumberFormat for F16 {
    fn shape(&self) -> BlockShape {
        BlockShape::plain(16)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        append(block, out, |_, value| saturating(value).to_le_bytes());
    }

    fn reconstruct(&self, _: &[u8], codes: &[u8], out: &mut [f32]) {
        read(codes, out, |code| f16::from_le_bytes(code).to_f32());
    }

    fn is_finite(&self, _: &[u8], codes: &[u8]) -> bool {
        all_below(codes, |code| u16::from_le_bytes(code) & 0x7fff, 0x7c00)
    }
}

fn saturating(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}
