//! Positions of large magnitudes: gathered above a bound, cut to the largest.
//!
//! Magnitudes are compared as integers, their keys, which order as finite floats do.

/// Values that are tested together when gathering.
const GATHER_VALUES: usize = 16;

/// The key of a value's magnitude.
pub(super) fn key(value: f32) -> u32 {
    value.abs().to_bits()
}

/// Collects the positions of the values whose magnitude is at least `bound`, ascending, in `memory`.
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

/// Moves to the front, in their order, the `keep` candidates with the largest magnitudes, the earlier first among
/// equals. `keys` is scratch memory.
pub(super) fn cut_to_largest(candidates: &mut [u32], values: &[f32], keep: usize, keys: &mut Vec<u32>) {
    let threshold = kth_largest(keys, candidates, values, keep);
    let above = keys.iter().filter(|&&key| key > threshold).count();
    keep_from(candidates, values, threshold, keep - above);
}

/// Which values pass is as good as random, so this has no branch on it: each is written, and overwritten by the next
/// unless it counts.
fn gather_from(block: &[f32], start: usize, bound: f32, candidates: &mut [u32], count: &mut usize) {
    for (offset, value) in block.iter().enumerate() {
        candidates[*count] = (start + offset) as u32;
        *count += usize::from(value.abs() >= bound);
    }
}

/// Moves to the front, in their order, the candidates above the threshold and the first `ties` at it; without branches
/// for the same reason.
fn keep_from(candidates: &mut [u32], values: &[f32], threshold: u32, mut ties: usize) {
    let mut kept = 0;
    for index in 0..candidates.len() {
        let candidate = candidates[index];
        let key = key(values[candidate as usize]);
        let is_kept_tie = (key == threshold) & (ties > 0);
        ties -= usize::from(is_kept_tie);
        candidates[kept] = candidate;
        kept += usize::from((key > threshold) | is_kept_tie);
    }
}

/// The k-th largest magnitude of the candidates, all of which `keys` then holds.
fn kth_largest(keys: &mut Vec<u32>, candidates: &[u32], values: &[f32], k: usize) -> u32 {
    keys.clear();
    keys.extend(candidates.iter().map(|&candidate| key(values[candidate as usize])));
    let ascending = keys.len() - k;
    *keys.select_nth_unstable(ascending).1
}
