//! Fragments of a gradient that are final during back-propagation.

use std::ops::Range;

use longhaul_common::plan::FragmentLayout;

/// Counts the missing values of each fragment of a vector of consecutive tensors.
#[derive(Debug)]
pub(super) struct FinishedFragments {
    layout: FragmentLayout,
    /// The range of each tensor in the vector.
    tensors: Vec<Range<usize>>,
    /// Values that are not final, by fragment.
    missing: Vec<usize>,
}

impl FinishedFragments {
    /// Starts with tensors of these sizes, whose sum is the layout's; none is final.
    pub fn new(layout: FragmentLayout, sizes: impl IntoIterator<Item = usize>) -> Self {
        let place = |end: &mut usize, size: usize| {
            let start = *end;
            *end += size;
            Some(start..*end)
        };
        let missing = layout.fragments().map(|fragment| layout.range(fragment).len()).collect();
        Self { layout, tensors: sizes.into_iter().scan(0, place).collect(), missing }
    }

    /// Marks a tensor as final, once. Returns the stretches of whole fragments that are now final.
    pub fn finish(&mut self, tensor: usize) -> Vec<Range<usize>> {
        let Some(place) = self.tensors.get(tensor) else { return Vec::new() };
        let mut stretches: Vec<Range<usize>> = Vec::new();
        for fragment in self.layout.touched_by(place) {
            let range = self.layout.range(fragment);
            let missing = &mut self.missing[fragment.0 as usize];
            *missing -= place.end.min(range.end) - place.start.max(range.start);
            if *missing > 0 {
                continue;
            }
            match stretches.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => stretches.push(range),
            }
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fragment_is_final_once_when_all_tensors_in_it_are() {
        let layout = FragmentLayout { values: 50, fragment_values: 8 };
        let sizes = [3, 20, 1, 17, 9];
        for order in [[4, 3, 2, 1, 0], [1, 3, 0, 4, 2]] {
            let mut finished = FinishedFragments::new(layout, sizes);
            let (mut is_final, mut told) = ([false; 50], [0; 50]);
            for tensor in order {
                let start: usize = sizes[..tensor].iter().sum();
                is_final[start..start + sizes[tensor]].fill(true);
                for stretch in finished.finish(tensor) {
                    assert!(stretch.start % 8 == 0 && (stretch.end % 8 == 0 || stretch.end == 50));
                    assert!(is_final[stretch.clone()].iter().all(|is_final| *is_final));
                    told[stretch].iter_mut().for_each(|times| *times += 1);
                }
                for range in layout.fragments().map(|fragment| layout.range(fragment)) {
                    let whole = is_final[range.clone()].iter().all(|is_final| *is_final);
                    assert!(told[range].iter().all(|times| *times == i32::from(whole)));
                }
            }
            assert_eq!(told, [1; 50]);
        }
    }
}
