//! ±7 steps of a bucket's absolute maximum.

use super::packing::{append_packed, read_packed};
use super::scales::{append_absmax, scale, step_of};
use super::{BlockShape, Codes, NumberFormat};
use crate::codec::random::Noise;

const STEPS: i16 = 7;
/// Offset of a code from its step.
const ZERO: u8 = 8;

/// A step plus [`ZERO`].
#[derive(Debug)]
pub(super) struct Int4;

impl NumberFormat for Int4 {
    fn shape(&self) -> BlockShape {
        BlockShape::bucket(4, Codes::Nibbles)
    }

    fn quantise(&self, block: &[f32], out: &mut Vec<u8>) {
        let inverse = f32::from(STEPS) / append_absmax(block, out);
        append_packed::<2>(block, out, |_, value| code(value * inverse));
    }

    fn quantise_at_random(&self, block: &[f32], noise: Noise, out: &mut Vec<u8>) {
        let inverse = f32::from(STEPS) / append_absmax(block, out);
        append_packed::<2>(block, out, |i, value| code(value * inverse + noise.centred(i)));
    }

    fn reconstruct(&self, scales: &[u8], codes: &[u8], out: &mut [f32]) {
        let step = scale(scales, 0) / f32::from(STEPS);
        let levels = std::array::from_fn(|code| (code as f32 - f32::from(ZERO)) * step);
        read_packed::<2>(codes, out, &levels);
    }
}

fn code(steps: f32) -> u8 {
    step_of::<STEPS>(steps).wrapping_add(ZERO)
}
