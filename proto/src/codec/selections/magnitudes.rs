//! Positions of large magnitudes: gathered above a bound, then cut to the largest.
//!
//! Magnitudes are compared as integers (keys), which have the same order as finite floats.

use multiversion::multiversion;

use crate::codec::bitmaps::append_ones;
use crate::codec::order::nth_smallest;

/// Values tested together when gathering.
const GATHER_VALUES: usize = 16;

/// Keys compared together.
const MASK_BITS: usize = 64;

/// Returns the key of a value's magnitude.
fn key(value: f32) -> u32 {
    value.abs().to_bits()
}

/// Collects the positions of values with a magnitude of at least `bound`, ascending, in `memory`.
#[multiversion(targets = "simd")]
pub(super) fn gather_at_least<'a>(values: &[f32], bound: f32, memory: &'a mut Vec<u32>) -> &'a mut [u32] {
    memory.resize(values.len(), 0);
    let (blocks, tail) = values.as_chunks::<GATHER_VALUES>();
    let mut count = 0;
    for (index, block) in blocks.iter().enumerate() {
        if block.iter().fold(false, |any, value| any | (value.abs() >= bound)) {
            gather_from(block, index * GATHER_VALUES, bound, memory, &mut count);
        }
    }
    gather_from(tail, blocks.len() * GATHER_VALUES, bound, memory, &mut count);
    &mut memory[..count]
}

/// Moves the `keep` candidates with the largest magnitudes to the front, in order; earlier ones win ties.
pub(super) fn cut_to_largest(candidates: &mut [u32], values: &[f32], keep: usize, keys: &mut Keys) {
    keys.collect(candidates.iter().map(|&candidate| values[candidate as usize]));
    let (threshold, ties) = keys.threshold(keep);
    keep_from(candidates, &keys.0, threshold, ties);
}

/// Appends `start` plus each of the positions of the `keep` largest magnitudes, in order; earlier ones win ties.
pub(super) fn append_largest(
    values: &[f32],
    keep: usize,
    keys: &mut Keys,
    start: u32,
    positions: &mut Vec<u32>,
) {
    keys.collect(values.iter().copied());
    let (threshold, ties) = keys.threshold(keep);
    append_from(&keys.0, threshold, ties, start, positions);
}

/// Appends `start` plus the index of each key above the threshold and of the first `ties` at it.
#[multiversion(targets = "simd")]
fn append_from(keys: &[u32], threshold: u32, mut ties: usize, start: u32, positions: &mut Vec<u32>) {
    for (group, start) in keys.chunks(MASK_BITS).zip((start..).step_by(MASK_BITS)) {
        let (mut over, mut at) = ([0_u8; MASK_BITS], [0_u8; MASK_BITS]);
        for (place, &key) in group.iter().enumerate() {
            over[place] = u8::from(key > threshold);
            at[place] = u8::from(key == threshold);
        }
        let (mut above, mut equal) = (mask_of(&over), mask_of(&at));
        while equal != 0 && ties > 0 {
            above |= equal & equal.wrapping_neg();
            equal &= equal - 1;
            ties -= 1;
        }
        append_ones(above, start, positions);
    }
}

/// Returns a bit for each byte, which is 0 or 1.
#[inline(always)]
fn mask_of(bytes: &[u8; MASK_BITS]) -> u64 {
    /// Moves the low bits of eight bytes to the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut mask = 0;
    for (index, bytes) in bytes.as_chunks::<8>().0.iter().enumerate() {
        mask |= (u64::from_le_bytes(*bytes).wrapping_mul(GATHER) >> 56) << (8 * index);
    }
    mask
}

/// Magnitudes to compare, as integers in the order of the floats; scratch memory.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<u32>);

impl Keys {
    /// Takes over magnitudes; returns their number.
    pub fn collect(&mut self, values: impl Iterator<Item = f32>) -> usize {
        self.0.clear();
        self.0.extend(values.map(key));
        self.0.len()
    }

    /// Returns the `keep`-th largest key, and how many equal to it are among the `keep` largest.
    fn threshold(&mut self, keep: usize) -> (u32, usize) {
        let threshold = self.kth_largest(keep);
        let mut above = 0_u32;
        for &key in &self.0 {
            above += u32::from(key > threshold);
        }
        (threshold, keep - above as usize)
    }

    /// Returns the `k`-th largest key.
    pub fn kth_largest(&mut self, k: usize) -> u32 {
        nth_smallest(&self.0, self.0.len() - k)
    }
}

/// Branch-free, because the accepted values are effectively random: each is written, and overwritten by the
/// next unless it counts.
fn gather_from(block: &[f32], start: usize, bound: f32, candidates: &mut [u32], count: &mut usize) {
    for (offset, value) in block.iter().enumerate() {
        candidates[*count] = (start + offset) as u32;
        *count += usize::from(value.abs() >= bound);
    }
}

/// Moves the candidates whose keys are above the threshold and the first `ties` at it to the front, in order. Branch-free
/// for the same reason.
fn keep_from(candidates: &mut [u32], keys: &[u32], threshold: u32, mut ties: usize) {
    let mut kept = 0;
    for (index, &key) in keys.iter().enumerate() {
        let candidate = candidates[index];
        let is_kept_tie = (key == threshold) & (ties > 0);
        ties -= usize::from(is_kept_tie);
        candidates[kept] = candidate;
        kept += usize::from((key > threshold) | is_kept_tie);
    }
}
