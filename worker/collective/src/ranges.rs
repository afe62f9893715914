use std::ops::Range;

/// Cuts `0..len` into one range for each of `size` members, as evenly as possible: range r is ⌊len·r/size⌋ .. ⌊len·(r+1)/size⌋.
///
/// # Panics
/// If `size` is 0.
#[must_use]
pub fn even_ranges(len: usize, size: usize) -> Vec<Range<usize>> {
    let (share, rest) = (len / size, len % size);
    let at = |rank: usize| share * rank + rest * rank / size;
    (0..size).map(|rank| at(rank)..at(rank + 1)).collect()
}

/// Describes an error in the ranges of a vector of `len` values, if any.
#[must_use]
pub fn objection(ranges: &[Range<usize>], len: usize, size: usize) -> Option<String> {
    if ranges.len() != size {
        return Some(format!("{} ranges for {size} members", ranges.len()));
    }
    if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > len) {
        return Some(format!("the range {range:?} is not one of a vector of {len} values"));
    }
    let mut sorted: Vec<_> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let overlap = sorted.windows(2).find(|pair| pair[0].end > pair[1].start)?;
    Some(format!("the ranges {:?} and {:?} overlap", overlap[0], overlap[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_ranges_cover_everything_once_and_differ_by_one_at_most() {
        for size in 1..9 {
            for len in 0..50 {
                let ranges = even_ranges(len, size);
                assert_eq!(objection(&ranges, len, size), None);
                assert_eq!(
                    ranges.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
                    (0..len).collect::<Vec<_>>()
                );
                let lengths = ranges.iter().map(Range::len);
                assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn ranges_that_cannot_be_are_objected_to() {
        let objection = |ranges: &[Range<usize>]| objection(ranges, 10, 2).unwrap();
        assert_eq!(objection(&[]), "0 ranges for 2 members");
        assert!(objection(&[0..5, 5..11]).contains("5..11 is not one"));
        #[allow(clippy::reversed_empty_ranges, reason = "that is the mistake")]
        let reversed = objection(&[0..5, 7..6]);
        assert!(reversed.contains("7..6 is not one"));
        assert_eq!(objection(&[4..8, 0..5]), "the ranges 0..5 and 4..8 overlap");
    }
}
