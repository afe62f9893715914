//! Optimal division of blocks into stages.

use std::ops::Range;

/// Divides blocks into contiguous stages of at least one block, minimising the time of the slowest stage. Of
/// equal divisions it chooses one whose first stages, which keep the activations of most micro-batches, have
/// less. `time` returns the time of a stage with these blocks, or that it cannot have them. Dynamic
/// programming over divisions (as PipeDream, Narayanan et al. 2019, without its replication): stages ×
/// blocks² calls.
///
/// `None`: no valid division exists.
#[must_use]
pub fn split(
    blocks: u32,
    stages: u32,
    time: impl Fn(u32, Range<u32>) -> Option<f64>,
) -> Option<Vec<Range<u32>>> {
    // By stage and end: the longest time of the stages up to this one with the blocks before that end, and
    // the start of the stage.
    let mut best: Vec<Vec<Option<(f64, u32)>>> = Vec::with_capacity(stages as usize);
    for stage in 0..stages {
        let before = |start: u32| match best.last() {
            None => (start == 0).then_some(0.0),
            Some(ends) => ends[start as usize].map(|(longest, _)| longest),
        };
        let best_until = |end: u32| {
            let starts = stage..end;
            let times = starts.filter_map(|start| {
                let earlier = before(start)?;
                Some((time(stage, start..end)?.max(earlier), start))
            });
            // The first of equals, which leaves least to the previous stages.
            times.reduce(|best, next| if next.0 < best.0 { next } else { best })
        };
        let row = (0..=blocks).map(best_until).collect();
        best.push(row);
    }
    let mut end = blocks;
    let mut ranges = Vec::with_capacity(stages as usize);
    for ends in best.iter().rev() {
        let (_, start) = ends[end as usize]?;
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    (!ranges.is_empty()).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all divisions of `blocks` into `stages` ranges from `start`.
    fn cuts(start: u32, blocks: u32, stages: u32) -> Vec<Vec<Range<u32>>> {
        if stages == 1 {
            return vec![std::iter::once(start..blocks).collect()];
        }
        let ends = start + 1..=blocks - (stages - 1);
        let first_until = |end: u32| {
            let rest = cuts(end, blocks, stages - 1);
            rest.into_iter().map(move |rest| std::iter::once(start..end).chain(rest).collect())
        };
        ends.flat_map(first_until).collect()
    }

    proptest! {
        #[test]
        fn no_other_cut_has_a_faster_slowest_stage(
            blocks in prop::collection::vec((1u32..20, 1u32..20), 1..9),
            stages in prop::collection::vec((1u32..4, 5u32..60), 1..5),
        ) {
            // Seconds, unless the blocks exceed the stage's capacity.
            let time = |stage: u32, range: Range<u32>| {
                let ((speed, room), held) = (stages[stage as usize], &blocks[range.start as usize..range.end as usize]);
                let fits = held.iter().map(|(_, size)| size).sum::<u32>() <= room;
                fits.then(|| f64::from(held.iter().map(|(work, _)| work).sum::<u32>()) / f64::from(speed))
            };
            let longest = |cut: &Vec<Range<u32>>| {
                let times: Option<Vec<f64>> = (0..).zip(cut).map(|(stage, range)| time(stage, range.clone())).collect();
                times?.into_iter().reduce(f64::max)
            };
            let (count, wanted) = (blocks.len() as u32, stages.len() as u32);
            let all = if wanted > count { Vec::new() } else { cuts(0, count, wanted) };
            let best = all.iter().filter_map(longest).reduce(f64::min);
            let found = split(count, wanted, time);
            prop_assert_eq!(found.as_ref().and_then(longest), best);
            if let Some(found) = found {
                prop_assert!(all.contains(&found));
            }
        }
    }

    #[test]
    fn equal_blocks_are_shared_equally_and_the_first_stages_have_least() {
        let time = |_: u32, range: Range<u32>| Some(range.len() as f64);
        let sizes: Vec<_> = split(7, 3, time).unwrap().iter().map(ExactSizeIterator::len).collect();
        assert_eq!(sizes, [2, 2, 3]);
        for (blocks, stages) in [(7, 0), (2, 3), (0, 3)] {
            assert_eq!(split(blocks, stages, time), None);
        }
    }
}
