//! The n-th smallest of many integers, by counting: passes that vectorise, over keys that the cache holds.

use multiversion::multiversion;

/// At most this many keys are gathered and partitioned.
const GATHERED_MAX: usize = 12;

/// Keys tested together when gathering.
const TESTED_KEYS: usize = 16;

/// Passes that interpolate between counts; later ones halve the range, which ends for any keys.
const INTERPOLATED_PASSES: usize = 16;

/// Returns the key with `n` keys before it in ascending order.
///
/// # Panics
/// If `n` is not below the number of keys.
#[multiversion(targets = "simd")]
pub(super) fn nth_smallest(keys: &[u32], n: usize) -> u32 {
    assert!(n < keys.len(), "the {n}th of {} keys", keys.len());
    // Loops, as adapters of iterators may be compiled apart, for the oldest processor.
    let (mut low, mut high) = (u32::MAX, 0);
    for &key in keys {
        (low, high) = (low.min(key), high.max(key));
    }
    // Keys below `low`, and within `low..=high`.
    let (mut below, mut within) = (0, keys.len());
    let mut passes = 0;
    while within > GATHERED_MAX && low < high {
        let span = u64::from(high - low);
        let part = match passes < INTERPOLATED_PASSES {
            true => span * (n - below) as u64 / within as u64,
            false => span / 2,
        };
        // At least a sixteenth off the ends, and above `low`.
        let probe = low + part.clamp(span / 16, span - span / 16).max(1) as u32;
        let mut count = 0_u32;
        for &key in keys {
            count += u32::from(key < probe);
        }
        let count = count as usize;
        if count <= n {
            (low, within, below) = (probe, within - (count - below), count);
        } else {
            (high, within) = (probe - 1, count - below);
        }
        passes += 1;
    }
    if low == high {
        return low;
    }
    let mut near = [0; GATHERED_MAX];
    let near = gather_within(keys, low, high, &mut near);
    *near.select_nth_unstable(n - below).1
}

/// Collects the keys within `low..=high`, at most as many as `near` has room for.
#[inline(always)]
fn gather_within<'a>(keys: &[u32], low: u32, high: u32, near: &'a mut [u32]) -> &'a mut [u32] {
    let mut count = 0;
    let mut gather = |keys: &[u32]| {
        for &key in keys.iter().filter(|key| (low..=high).contains(key)) {
            near[count] = key;
            count += 1;
        }
    };
    let (blocks, rest) = keys.as_chunks::<TESTED_KEYS>();
    for block in blocks {
        let mut any = false;
        for &key in block {
            any |= key.wrapping_sub(low) <= high - low;
        }
        if any {
            gather(block);
        }
    }
    gather(rest);
    &mut near[..count]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few different keys; keys close together; all.
    fn keys() -> impl Strategy<Value = Vec<u32>> {
        let key = prop_oneof![
            Just((0_u32..5).boxed()),
            Just((0x3f00_0000_u32..0x3f00_1000).boxed()),
            Just(prop_oneof![Just(0), Just(u32::MAX), Just(7), any::<u32>()].boxed()),
            Just((0_u32..32).prop_map(|log2| 1 << log2).boxed()),
            Just(any::<u32>().boxed()),
        ];
        (key, 1_usize..3000).prop_flat_map(|(key, len)| prop::collection::vec(key, len))
    }

    proptest! {
        #[test]
        fn the_nth_key_is_that_of_the_sorted_ones(keys in keys(), part in 0.0..1.0_f64) {
            let n = (part * keys.len() as f64) as usize;
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            prop_assert_eq!(nth_smallest(&keys, n), sorted[n]);
        }
    }
}
