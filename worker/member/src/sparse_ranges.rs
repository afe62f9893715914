//! Some stretches of a long vector.

use std::ops::Range;

/// The values of some stretches of a longer vector, as of the fragments due in a round. The rest would have to be allocated, cleared and copied each time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseRanges {
    /// Ascending and disjoint, each with the place of its first value.
    stretches: Vec<(Range<usize>, usize)>,
    values: Vec<f32>,
}

impl SparseRanges {
    /// Returns these ascending and disjoint stretches with arbitrary values, in the memory of a vector no longer used.
    #[must_use]
    pub fn reusing(mut values: Vec<f32>, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut len = 0;
        let stretches = ranges.into_iter().map(|range| {
            let place = len;
            len += range.len();
            (range, place)
        });
        let stretches = stretches.collect();
        values.resize(len, 0.0);
        Self { stretches, values }
    }

    /// Returns the memory, for other values.
    #[must_use]
    pub fn into_memory(self) -> Vec<f32> {
        self.values
    }

    /// Wraps a whole vector.
    #[must_use]
    pub fn whole(values: Vec<f32>) -> Self {
        Self { stretches: vec![(0..values.len(), 0)], values }
    }

    /// Returns the values of a range within one stretch.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<&[f32]> {
        self.place(&range).map(|place| &self.values[place])
    }

    /// As [`Self::get`].
    #[must_use]
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [f32]> {
        self.place(&range).map(|place| &mut self.values[place])
    }

    /// Iterates over the stretches and their values.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.stretches.iter().map(|(range, place)| (range.clone(), &self.values[*place..place + range.len()]))
    }

    /// As [`Self::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut [f32])> {
        let mut rest = self.values.as_mut_slice();
        self.stretches.iter().map(move |(range, _)| {
            let (values, after) = std::mem::take(&mut rest).split_at_mut(range.len());
            rest = after;
            (range.clone(), values)
        })
    }

    /// Returns the vector of `len` values, with zeros outside the stretches.
    #[must_use]
    pub fn into_whole(self, len: usize) -> Vec<f32> {
        if let [(range, _)] = self.stretches.as_slice()
            && *range == (0..len)
        {
            return self.values;
        }
        let mut whole = vec![0.0; len];
        for (range, place) in &self.stretches {
            whole[range.clone()].copy_from_slice(&self.values[*place..place + range.len()]);
        }
        whole
    }

    fn place(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let after = self.stretches.partition_point(|(stretch, _)| stretch.start <= range.start);
        let (stretch, place) = self.stretches.get(after.checked_sub(1)?)?;
        let start = place + (range.start - stretch.start);
        (range.start <= range.end && range.end <= stretch.end).then(|| start..start + range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_where_they_are_in_the_whole() {
        let mut some = SparseRanges::reusing(Vec::new(), [2..4, 4..5, 7..9]);
        for (range, values) in some.iter_mut() {
            values.iter_mut().zip(range).for_each(|(value, index)| *value = index as f32);
        }
        assert_eq!(some.get(2..4), Some([2.0, 3.0].as_slice()));
        assert_eq!(some.get(8..9), Some([8.0].as_slice()));
        assert_eq!(some.get(4..5), Some([4.0].as_slice()));
        for range in [0..1, 1..3, 3..5, 5..7, 8..10, 20..21] {
            assert_eq!(some.get(range.clone()), None, "{range:?}");
        }
        some.get_mut(7..8).unwrap().fill(0.5);
        assert_eq!(some.into_whole(10), [0.0, 0.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.5, 8.0, 0.0]);
    }

    #[test]
    fn a_whole_is_not_copied() {
        let values = vec![1.0, 2.0];
        let address = values.as_ptr();
        let whole = SparseRanges::whole(values);
        assert_eq!((whole.get(0..2), whole.get(1..3)), (Some([1.0, 2.0].as_slice()), None));
        let values = whole.into_whole(2);
        assert_eq!(values.as_ptr(), address);
        assert_eq!(SparseRanges::whole(Vec::new()).get(0..3), None);
    }
}
