//! Positions of large magnitudes: gathered above a bound, then cut to the largest.
//!
//! Magnitudes are compared as integers (keys), which have the same order as finite floats.

/// Values tested together when gathering.
const GATHER_VALUES: usize = 16;

/// Returns the key of a value's magnitude.
pub(super) fn key(value: f32) -> u32 {
    value.abs().to_bits()
}

/// Collects the positions of values with a magnitude of at least `bound`, ascending, in `memory`.
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
/// `keys` is scratch memory.
pub(super) fn cut_to_largest(candidates: &mut [u32], values: &[f32], keep: usize, keys: &mut Vec<u32>) {
    let threshold = kth_largest(keys, candidates, values, keep);
    let above = keys.iter().filter(|&&key| key > threshold).count();
    keep_from(candidates, values, threshold, keep - above);
}

/// Branch-free, because the accepted values are effectively random: each is written, and overwritten by the
/// next unless it counts.
fn gather_from(block: &[f32], start: usize, bound: f32, candidates: &mut [u32], count: &mut usize) {
    for (offset, value) in block.iter().enumerate() {
        candidates[*count] = (start + offset) as u32;
        *count += usize::from(value.abs() >= bound);
    }
}

/// Moves the candidates above the threshold and the first `ties` at it to the front, in order. Branch-free
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

/// Returns the k-th largest magnitude of the candidates; fills `keys` with all of them.
fn kth_largest(keys: &mut Vec<u32>, candidates: &[u32], values: &[f32], k: usize) -> u32 {
    keys.clear();
    keys.extend(candidates.iter().map(|&candidate| key(values[candidate as usize])));
    let ascending = keys.len() - k;
    *keys.select_nth_unstable(ascending).1
}
