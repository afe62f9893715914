//! Parameters present at a worker, and those it synchronises; they differ for later members of a tensor
//! group.

use std::ops::Range;

use super::ModelSpec;

/// Places of the synchronised parameters ([`ModelSpec::synchronised`]) in the flat vector of all present
/// ones.
#[derive(Clone, Debug)]
pub struct SynchronisedLayout {
    /// Length of that vector.
    values: usize,
    /// Stretches of it, in the order of the synchronised vector.
    synchronised: Vec<Range<usize>>,
    /// Stretches of the replicated parameters of a tensor group.
    replicated: Vec<Range<usize>>,
}

impl SynchronisedLayout {
    /// Creates the share of a model, or of a part of one.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        let mut share = Self { values: 0, synchronised: Vec::new(), replicated: Vec::new() };
        for tensor in spec.parameters() {
            let place = share.values..share.values + tensor.count() as usize;
            share.values = place.end;
            if !spec.shard.is_whole() && tensor.is_replicated() {
                append(&mut share.replicated, place.clone());
            }
            if spec.synchronises(&tensor) {
                append(&mut share.synchronised, place);
            }
        }
        share
    }

    /// Returns the number of synchronised values.
    #[must_use]
    pub fn synchronised_len(&self) -> usize {
        self.synchronised.iter().map(Range::len).sum()
    }

    /// Extracts the synchronised values from a vector of all present ones.
    #[must_use]
    pub fn synchronised(&self, flat: Vec<f32>) -> Vec<f32> {
        if self.is_all() { flat } else { gathered(&self.synchronised, &flat) }
    }

    /// Writes the synchronised values to their places.
    pub fn put_synchronised(&self, values: &[f32], flat: &mut [f32]) {
        put(&self.synchronised, values, flat);
    }

    /// Extracts the replicated values of a tensor group; empty without one.
    #[must_use]
    pub fn replicated(&self, flat: &[f32]) -> Vec<f32> {
        gathered(&self.replicated, flat)
    }

    /// Writes them to their places.
    pub fn put_replicated(&self, values: &[f32], flat: &mut [f32]) {
        put(&self.replicated, values, flat);
    }

    /// Expands a synchronised vector to all present values, with zeros elsewhere.
    #[must_use]
    pub fn spread(&self, synchronised: Vec<f32>) -> Vec<f32> {
        if self.is_all() {
            return synchronised;
        }
        let mut flat = vec![0.0; self.values];
        self.put_synchronised(&synchronised, &mut flat);
        flat
    }

    /// Returns the places of a stretch of the synchronised vector: pieces relative to its start, and the
    /// begin of each.
    pub fn places(&self, stretch: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> + '_ {
        let mut start = 0;
        self.synchronised.iter().filter_map(move |place| {
            let own = start..start + place.len();
            start = own.end;
            let (from, to) = (own.start.max(stretch.start), own.end.min(stretch.end));
            (from < to).then(|| (from - stretch.start..to - stretch.start, place.start + from - own.start))
        })
    }

    fn is_all(&self) -> bool {
        self.synchronised_len() == self.values
    }
}

/// Appends a stretch that starts at or after the end of the previous ones.
fn append(stretches: &mut Vec<Range<usize>>, next: Range<usize>) {
    match stretches.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => stretches.push(next),
    }
}

fn gathered(stretches: &[Range<usize>], flat: &[f32]) -> Vec<f32> {
    stretches.iter().flat_map(|stretch| &flat[stretch.clone()]).copied().collect()
}

fn put(stretches: &[Range<usize>], values: &[f32], flat: &mut [f32]) {
    let mut rest = values;
    for stretch in stretches {
        let (own, others) = rest.split_at(stretch.len());
        flat[stretch.clone()].copy_from_slice(own);
        rest = others;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiny::{tiny_gpt2, tiny_llama};

    fn numbered(count: u64) -> Vec<f32> {
        (0..count).map(|value| value as f32).collect()
    }

    #[test]
    fn what_everybody_has_whole_is_all_synchronised_and_nothing_is_replicated() {
        let spec = tiny_gpt2();
        let (share, flat) = (SynchronisedLayout::new(&spec), numbered(spec.parameter_count()));
        assert_eq!(share.synchronised(flat.clone()), flat);
        assert_eq!(share.spread(flat.clone()), flat);
        assert!(share.replicated(&flat).is_empty());
        assert_eq!(share.places(3..9).collect::<Vec<_>>(), [(0..6, 3)]);
    }

    /// Tensor by tensor, from the specification.
    #[test]
    fn a_later_member_synchronises_what_is_cut_and_has_the_rest_from_the_first() {
        for whole in [tiny_gpt2(), tiny_llama()] {
            let shares = whole.shards(2).unwrap();
            for spec in &shares {
                let (share, flat) = (SynchronisedLayout::new(spec), numbered(spec.parameter_count()));
                let (mut cut, mut replicated, mut start) = (Vec::new(), Vec::new(), 0);
                for tensor in spec.parameters() {
                    let end = start + tensor.count() as usize;
                    let into = if tensor.is_replicated() { &mut replicated } else { &mut cut };
                    into.extend_from_slice(&flat[start..end]);
                    start = end;
                }
                let expected = if spec.shard.index() == 0 { &flat } else { &cut };
                assert_eq!(&share.synchronised(flat.clone()), expected);
                assert_eq!(share.synchronised_len() as u64, spec.synchronised_count());
                assert_eq!(share.replicated(&flat), replicated);
                let mut back = share.spread(expected.clone());
                share.put_replicated(&replicated, &mut back);
                assert_eq!(back, flat);
            }
        }
    }

    #[test]
    fn stretches_of_what_is_synchronised_are_found_where_they_are() {
        let spec = tiny_gpt2().shards(2).unwrap().remove(1);
        let (share, flat) = (SynchronisedLayout::new(&spec), numbered(spec.parameter_count()));
        let synchronised = share.synchronised(flat.clone());
        for stretch in [0..1, 0..synchronised.len(), 100..5000, synchronised.len() - 3..synchronised.len()] {
            let mut found = vec![0.0; stretch.len()];
            for (piece, start) in share.places(stretch.clone()) {
                found[piece.clone()].copy_from_slice(&flat[start..start + piece.len()]);
            }
            assert_eq!(found, synchronised[stretch]);
        }
    }
}
