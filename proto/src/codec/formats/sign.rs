//! The sign, with the mean magnitude of a block.

use super::packing::{append_packed, few_levels, read_packed};
use super::scales::{SCALE_BYTES, append_scale, mean_scale, scale};
use super::{BlockShape, NumberFormat};

/// One bit: whether the value is negative.
#[derive(Debug)]
pub(super) struct Sign;

impl NumberFormat for Sign {
    fn shape(&self) -> BlockShape {
        BlockShape::group(1, SCALE_BYTES)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        let sum: f64 = block.iter().map(|value| f64::from(value.abs())).sum();
        append_scale(mean_scale(sum / block.len() as f64), out);
        append_packed::<8>(block, out, |_, value| u8::from(value < 0.0));
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let scale = scale(scales, 0);
        read_packed::<8>(codes, out, &few_levels([scale, -scale]));
    }
}
