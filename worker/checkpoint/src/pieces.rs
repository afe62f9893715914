//! Assembly of a model or a part from pieces: parts with some of its blocks, and shares of its layers.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use longhaul_common::model::ModelSpec;

/// Known stretches of each tensor of the whole model, by name and start.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a>(BTreeMap<String, BTreeMap<usize, &'a [f32]>>);

impl<'a> Pieces<'a> {
    /// Adds a vector with the values that `part` synchronises.
    ///
    /// # Errors
    /// Its length is wrong.
    pub fn add(&mut self, part: &ModelSpec, values: &'a [f32]) -> Result<()> {
        let mut rest = values;
        for tensor in part.synchronised() {
            let places = self.0.entry(tensor.name.clone()).or_default();
            for place in tensor.places(part.shard) {
                let (own, others) =
                    rest.split_at_checked(place.len()).context("a part with too few values")?;
                places.insert(place.start, own);
                rest = others;
            }
        }
        ensure!(rest.is_empty(), "a part with too many values");
        Ok(())
    }

    /// Returns the values that `wanted` synchronises, in its order.
    ///
    /// # Errors
    /// Names an incomplete tensor.
    pub fn gather(&self, wanted: &ModelSpec) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for tensor in wanted.synchronised() {
            let missing = || format!("no part of the checkpoint has all of {}", tensor.name);
            let pieces = self.0.get(&tensor.name).with_context(missing)?;
            for place in tensor.places(wanted.shard) {
                copy(pieces, place, &mut all).with_context(missing)?;
            }
        }
        Ok(all)
    }
}

/// Appends a stretch from one piece or several consecutive ones. `None`: a value is missing.
fn copy(pieces: &BTreeMap<usize, &[f32]>, stretch: Range<usize>, into: &mut Vec<f32>) -> Option<()> {
    let mut at = stretch.start;
    while at < stretch.end {
        let (start, piece) = pieces.range(..=at).next_back()?;
        let end = stretch.end.min(start + piece.len());
        into.extend_from_slice(
            piece.get(at - start..end.checked_sub(*start)?).filter(|own| !own.is_empty())?,
        );
        at = end;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::model::SynchronisedLayout;
    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

    /// Each share is drawn from the same seed by itself, independent of the code under test.
    fn synchronised(spec: &ModelSpec) -> Vec<f32> {
        SynchronisedLayout::new(spec).synchronised(draw_parameters(spec, 3))
    }

    #[test]
    fn shares_make_a_model_and_other_shares() {
        for whole in [tiny_gpt2(), tiny_llama()] {
            let shares = whole.shards(2).unwrap();
            let values: Vec<Vec<f32>> = shares.iter().map(synchronised).collect();
            let mut pieces = Pieces::default();
            for (share, values) in shares.iter().zip(&values) {
                pieces.add(share, values).unwrap();
            }
            assert_eq!(pieces.gather(&whole).unwrap(), synchronised(&whole));
            for (share, values) in shares.iter().zip(&values) {
                assert_eq!(&pieces.gather(share).unwrap(), values);
            }
            // The other way round, and into parts of blocks.
            let all = synchronised(&whole);
            let mut one = Pieces::default();
            one.add(&whole, &all).unwrap();
            assert_eq!(one.gather(&shares[1]).unwrap(), values[1]);
            let part = whole.part(std::iter::once(0..2).collect());
            assert_eq!(pieces.gather(&part).unwrap(), one.gather(&part).unwrap());
        }
    }

    #[test]
    fn a_share_alone_is_no_model_and_a_vector_of_another_length_no_share() {
        let whole = tiny_gpt2();
        let shares = whole.shards(2).unwrap();
        let values = synchronised(&shares[1]);
        let mut pieces = Pieces::default();
        pieces.add(&shares[1], &values).unwrap();
        let missing = pieces.gather(&whole).unwrap_err().to_string();
        assert!(missing.starts_with("no part of the checkpoint has all of"), "{missing}");
        assert!(pieces.add(&shares[1], &values[1..]).is_err() && pieces.add(&shares[0], &values).is_err());
    }
}
