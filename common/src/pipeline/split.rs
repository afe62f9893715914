//! Which blocks go where: the cut of a row of blocks into stages whose slowest is as fast as it can be.

use std::ops::Range;

/// What a block asks of the stage that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockLoad {
    /// Arithmetic of a micro-batch, forward and backward, in FLOPs.
    pub flops: f64,
    /// Memory, in bytes: of its parameters with all that is kept of them, and of activations.
    pub bytes: f64,
}

/// What a stage has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCapacity {
    /// FLOPs a second.
    pub flops_per_s: f64,
    /// Bytes.
    pub bytes: f64,
}

/// Neighbouring blocks for each stage, at least one each, so that all fit into their stages' memory and the stage that takes longest takes as little time as
/// possible; of several such cuts one whose first stages, which keep the activations of most micro-batches, have less. Dynamic programming over cuts (as PipeDream, Narayanan et al. 2019, without
/// its replication): the time grows with stages × blocks².
///
/// None: there is no cut that fits.
#[must_use]
pub fn split(blocks: &[BlockLoad], stages: &[StageCapacity]) -> Option<Vec<Range<u32>>> {
    let sums = Sums::of(blocks);
    // By stage and end: of the stages up to this one with the blocks before that end, the longest time, and where the stage begins.
    let mut best: Vec<Vec<Option<(f64, usize)>>> = Vec::with_capacity(stages.len());
    for (stage, capacity) in stages.iter().enumerate() {
        let before = |start: usize| match best.last() {
            None => (start == 0).then_some(0.0),
            Some(ends) => ends[start].map(|(longest, _)| longest),
        };
        let best_until = |end: usize| {
            let starts = (stage..end).filter(|&start| sums.fits(start..end, *capacity));
            let times = starts.filter_map(|start| {
                let own = sums.flops(start..end) / capacity.flops_per_s;
                Some((before(start)?.max(own), start))
            });
            // Of equals the first, which leaves least to the stages before.
            times.reduce(|best, next| if next.0 < best.0 { next } else { best })
        };
        let row = (0..=blocks.len()).map(best_until).collect();
        best.push(row);
    }
    let mut end = blocks.len();
    let mut ranges = Vec::with_capacity(stages.len());
    for ends in best.iter().rev() {
        let (_, start) = ends[end]?;
        ranges.push(start as u32..end as u32);
        end = start;
    }
    ranges.reverse();
    (end == 0 && !ranges.is_empty()).then_some(ranges)
}

/// Sums of the loads of all blocks before each.
struct Sums(Vec<BlockLoad>);

impl Sums {
    fn of(blocks: &[BlockLoad]) -> Self {
        let mut sums = vec![BlockLoad { flops: 0.0, bytes: 0.0 }];
        let mut sum = sums[0];
        sums.extend(blocks.iter().map(|block| {
            sum = BlockLoad { flops: sum.flops + block.flops, bytes: sum.bytes + block.bytes };
            sum
        }));
        Self(sums)
    }

    fn flops(&self, range: Range<usize>) -> f64 {
        self.0[range.end].flops - self.0[range.start].flops
    }

    fn fits(&self, range: Range<usize>, capacity: StageCapacity) -> bool {
        self.0[range.end].bytes - self.0[range.start].bytes <= capacity.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a cut: the longest time; none: it does not fit.
    fn longest(blocks: &[BlockLoad], stages: &[StageCapacity], ranges: &[Range<u32>]) -> Option<f64> {
        let times = ranges.iter().zip(stages).map(|(range, stage)| {
            let held = &blocks[range.start as usize..range.end as usize];
            let bytes: f64 = held.iter().map(|block| block.bytes).sum();
            (bytes <= stage.bytes).then(|| held.iter().map(|block| block.flops).sum::<f64>() / stage.flops_per_s)
        });
        times.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
    }

    /// All cuts of `blocks` into `stages` ranges from `start` on.
    fn cuts(start: u32, blocks: u32, stages: usize) -> Vec<Vec<Range<u32>>> {
        if stages == 1 {
            return vec![std::iter::once(start..blocks).collect()];
        }
        let ends = start + 1..=blocks - (stages as u32 - 1);
        ends.flat_map(|end| {
            let rest = cuts(end, blocks, stages - 1);
            rest.into_iter().map(move |rest| std::iter::once(start..end).chain(rest).collect())
        })
        .collect()
    }

    proptest! {
        /// In whole numbers, so that sums are exact in any order.
        #[test]
        fn no_other_cut_has_a_faster_slowest_stage(
            blocks in prop::collection::vec((1u32..20, 1u32..20), 1..9),
            stages in prop::collection::vec((0u32..3, 5u32..60), 1..5),
        ) {
            let blocks: Vec<_> =
                blocks.iter().map(|&(flops, bytes)| BlockLoad { flops: flops.into(), bytes: bytes.into() }).collect();
            let capacity = |&(speed, bytes): &(u32, u32)| {
                StageCapacity { flops_per_s: f64::from(1 << speed), bytes: bytes.into() }
            };
            let stages: Vec<_> = stages.iter().map(capacity).collect();
            let all = if stages.len() > blocks.len() { Vec::new() } else { cuts(0, blocks.len() as u32, stages.len()) };
            let best = all.iter().filter_map(|cut| longest(&blocks, &stages, cut)).reduce(f64::min);
            let found = split(&blocks, &stages);
            prop_assert_eq!(found.as_ref().and_then(|cut| longest(&blocks, &stages, cut)), best);
            if let Some(found) = found {
                prop_assert!(all.contains(&found));
            }
        }
    }

    #[test]
    fn equal_blocks_are_shared_equally_and_the_first_stages_have_least() {
        let blocks = vec![BlockLoad { flops: 1.0, bytes: 1.0 }; 7];
        let stages = vec![StageCapacity { flops_per_s: 1.0, bytes: 10.0 }; 3];
        let sizes: Vec<_> = split(&blocks, &stages).unwrap().iter().map(ExactSizeIterator::len).collect();
        assert_eq!(sizes, [2, 2, 3]);
        assert_eq!(split(&blocks, &[]), None);
        assert_eq!(split(&blocks[..2], &stages), None);
        assert_eq!(split(&[], &stages), None);
    }
}
