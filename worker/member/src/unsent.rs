//! Unsent changes that stay in the local parameters (`late = "keep-unsent"`).

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::id::FragmentId;
use longhaul_common::plan::FragmentLayout;

use crate::encode::error_feedback::ErrorFeedback;
use crate::sparse_ranges::SparseRanges;

/// The part of error feedback that is also in the device's parameters, with the sign of a gradient: they are θ − this, with θ the parameters
/// under `late = "keep"`. Error feedback has it still, so contributions leave it out.
#[derive(Debug, Default)]
pub struct Unsent {
    /// One value for each parameter; empty: zeros.
    values: Vec<f32>,
}

impl Unsent {
    /// Subtracts it from the difference between the synchronised and the local parameters.
    pub fn leave_out(&self, delta: &mut SparseRanges) {
        for (range, delta) in delta.iter_mut() {
            let unsent = self.values.get(range).unwrap_or_default();
            delta.iter_mut().zip(unsent).for_each(|(delta, unsent)| *delta -= unsent);
        }
    }

    /// Adds it to the device's parameters, which then are those under `late = "keep"`.
    pub fn put_back(&self, parameters: &mut [f32]) {
        parameters.iter_mut().zip(&self.values).for_each(|(local, unsent)| *local += unsent);
    }

    /// Lets a result's change of the contributed parameters keep what `memories` hold of them.
    pub fn renew(
        &mut self,
        change: &mut SparseRanges,
        memories: &BTreeMap<FragmentId, ErrorFeedback>,
        layout: &FragmentLayout,
    ) {
        self.values.resize(layout.values as usize, 0.0);
        for (all, change) in change.iter_mut() {
            self.values[all.clone()].fill(0.0);
            for fragment in layout.touched_by(&all) {
                let range = layout.range(fragment);
                if let Some(memory) = memories.get(&fragment).filter(|_| is_within(&range, &all)) {
                    self.values[range].copy_from_slice(&memory.residual);
                }
            }
            change.iter_mut().zip(&self.values[all]).for_each(|(change, unsent)| *change -= unsent);
        }
    }
}

fn is_within(part: &Range<usize>, all: &Range<usize>) -> bool {
    all.start <= part.start && part.end <= all.end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rounds of a member: local parameters end at the synchronised ones less error feedback, and contributions have the training since.
    #[test]
    fn local_parameters_keep_what_waits_and_contributions_leave_it_out() {
        let layout = FragmentLayout { values: 6, fragment_values: 4 };
        let memory = |residual: &[f32]| ErrorFeedback { residual: residual.to_vec(), velocity: Vec::new() };
        let mut unsent = Unsent::default();
        let mut local = vec![0.0f32; 6];
        // The second fragment is another member's.
        for (round, residual) in [(1, [1.0, 0.0, -2.0, 0.5]), (2, [0.0, 0.25, 4.0, 0.0])] {
            let memories = BTreeMap::from([(FragmentId(0), memory(&residual))]);
            let change = local.iter().map(|local| round as f32 - local).collect();
            let mut change = SparseRanges::whole(change);
            unsent.renew(&mut change, &memories, &layout);
            local.iter_mut().zip(change.into_whole(6)).for_each(|(local, change)| *local += change);
            for (at, local) in local.iter().enumerate() {
                assert_eq!(*local, round as f32 - residual.get(at).unwrap_or(&0.0), "value {at}");
            }
            local.iter_mut().for_each(|local| *local -= 0.125);
            let mut delta = SparseRanges::whole(local.iter().map(|local| round as f32 - local).collect());
            unsent.leave_out(&mut delta);
            assert_eq!(delta.into_whole(6), [0.125; 6]);
            let mut saved = local.clone();
            unsent.put_back(&mut saved);
            assert_eq!(saved, [round as f32 - 0.125; 6]);
        }
    }
}
