//! ±127 steps of a bucket's absolute maximum.

use super::packing::{append, read};
use super::scales::{append_absmax, scale, step_of};
use super::{BlockShape, Codes, NumberFormat};
use crate::codec::random::Noise;

const STEPS: i16 = 127;

/// A step in two's complement.
#[derive(Debug)]
pub(super) struct Int8;

impl NumberFormat for Int8 {
    fn shape(&self) -> BlockShape {
        BlockShape::bucket(8, Codes::Bytes)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        let inverse = f32::from(STEPS) / append_absmax(block, out);
        append(block, out, |_, value| [step_of::<STEPS>(value * inverse)]);
    }

    fn quantise_at_random(&self, block: &[f32], noise: Noise, out: &mut Vec<u8>) {
        let inverse = f32::from(STEPS) / append_absmax(block, out);
        append(block, out, |i, value| [step_of::<STEPS>(value * inverse + noise.centred(i))]);
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let step = scale(scales, 0) / f32::from(STEPS);
        read(codes, out, |[code]| f32::from(code as i8) * step);
    }
}
