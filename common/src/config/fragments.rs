//! Division of a model into fragments.

use super::SyncConfig;
use crate::plan::FragmentLayout;

/// Maximum fragments of a sync group. Messages between workers and coordinator name each of them, and a
/// worker's round state has a slot for each: this bounds both.
pub const FRAGMENTS_MAX: u32 = 10_000;

/// Dense f32, a fragment of this size is the largest frame body that the transport accepts: 16 MiB.
pub(crate) const FRAGMENT_VALUES_MAX: u32 = 4 << 20;

impl SyncConfig {
    /// Divides the parameters into fragments of `fragment_values`, or of the smallest multiple that gives at
    /// most [`FRAGMENTS_MAX`]. (A fragment that fits a frame suffices for 42 thousand million parameters on
    /// one worker.)
    #[must_use]
    pub fn layout(&self, values: u64) -> FragmentLayout {
        let size = u64::from(self.fragment_values);
        let times = values.div_ceil(size).div_ceil(u64::from(FRAGMENTS_MAX)).max(1);
        let fragment_values = size.saturating_mul(times).min(u64::from(FRAGMENT_VALUES_MAX)) as u32;
        FragmentLayout { values, fragment_values }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SyncPreset;
    use super::*;

    #[test]
    fn a_large_model_has_larger_fragments_and_no_more_than_messages_have_room_for() {
        for preset in SyncPreset::ALL {
            let sync = SyncConfig::of(preset);
            let size = sync.fragment_values;
            let all = u64::from(size) * u64::from(FRAGMENTS_MAX);
            for values in [0, 1, all - 1, all] {
                assert_eq!(sync.layout(values), FragmentLayout { values, fragment_values: size });
            }
            assert_eq!(sync.layout(all + 1).fragment_values, 2 * size);
            for values in [all + 1, 7_000_000_000, 40_000_000_000] {
                let layout = sync.layout(values);
                assert!(layout.count() <= FRAGMENTS_MAX, "{preset:?}: {layout:?}");
                assert!(layout.fragment_values.is_multiple_of(sync.chunk));
                assert!((size..=FRAGMENT_VALUES_MAX).contains(&layout.fragment_values));
            }
        }
        assert_eq!(SyncConfig::of(SyncPreset::Auto).layout(u64::MAX).fragment_values, FRAGMENT_VALUES_MAX);
    }
}
