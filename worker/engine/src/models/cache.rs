//! A model's memory of earlier tokens, so that one more costs one position only.

use longhaul_common::config::Precision;
use longhaul_common::model::ModelSpec;
use tch::{Device, TchError, Tensor};

use super::precision::kind_of;

/// The keys and values of some sequences of equal length in all layers: memory for a whole context, allocated once, outside autograd.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<[Tensor; 2]>, // keys and values, each [B, G, C, E]
    length: i64,
}

/// One layer's part of a [`Cache`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Past<'a> {
    keys: &'a Tensor,   // [B, G, C, E]
    values: &'a Tensor, // [B, G, C, E]
    length: i64,
}

impl Cache {
    /// Creates an empty cache of `rows` sequences for a model of this specification.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub fn new(spec: &ModelSpec, rows: i64, precision: Precision, device: Device) -> Result<Self, TchError> {
        let [heads, context, width] =
            [spec.kv_heads / spec.shard.ways(), spec.context, spec.head_width()].map(i64::from);
        let room = || Tensor::f_zeros([rows, heads, context, width], (kind_of(precision), device));
        let layers = (0..spec.layers).map(|_| Ok([room()?, room()?])).collect::<Result<_, TchError>>()?;
        Ok(Self { layers, length: 0 })
    }

    /// Returns the number of tokens of each sequence.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Reports whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Drops all tokens.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    pub(super) fn layer(&self, index: usize) -> Past<'_> {
        let [keys, values] = &self.layers[index];
        Past { keys, values, length: self.length }
    }

    /// Counts tokens whose keys and values all layers have stored.
    pub(super) fn advance(&mut self, tokens: i64) {
        self.length += tokens;
    }
}

impl Past<'_> {
    /// Stores the keys and values of the next T tokens, each [B, G, T, E], and returns those of all tokens, each [B, G, S, E].
    pub(super) fn extended(self, k: &Tensor, v: &Tensor) -> Result<[Tensor; 2], TchError> {
        let tokens = k.size()[2];
        let keep = |room: &Tensor, new: &Tensor| {
            room.f_narrow(2, self.length, tokens)?.f_copy_(new)?;
            room.f_narrow(2, 0, self.length + tokens)
        };
        Ok([keep(self.keys, k)?, keep(self.values, v)?])
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::models::{Model, Parameters};
    use crate::testing::test_device;
    use longhaul_common::model::draw_parameters;
    use longhaul_common::model::tiny::{tiny_bottleneck, tiny_gpt2, tiny_llama, tiny_subspace};

    const CONTEXT: usize = 16;

    /// Weights large enough for uneven attention.
    fn model(spec: &ModelSpec, precision: Precision) -> Model {
        let values: Vec<f32> = draw_parameters(spec, 3).iter().map(|value| value * 8.0).collect();
        Model::of_all(spec, &Parameters::new(spec, &values, test_device()).unwrap(), precision).unwrap()
    }

    fn tokens() -> Tensor {
        Tensor::from_slice(&(0..CONTEXT as i64).map(|i| i * i * 7 % 64).collect::<Vec<_>>())
            .view([1, -1])
            .to_device(test_device())
    }

    #[test]
    fn the_logits_of_each_position_are_those_of_the_whole_pass() {
        for spec in [tiny_gpt2(), tiny_subspace(true), tiny_bottleneck(), tiny_llama()] {
            // The sums are in another order: some bits of f32 differ, and of the eight of bf16.
            for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 3e-2)] {
                let model = model(&spec, precision);
                let whole = tch::no_grad(|| model.logits(&tokens())).unwrap(); // [1, T, V]
                let scale = whole.abs().max().double_value(&[]);
                // One by one, and in pieces at the start, in the middle and at the end.
                for pieces in [[1; CONTEXT].as_slice(), &[CONTEXT], &[5, 1, 1, 4, 5], &[1, 15]] {
                    let mut cache = Cache::new(&spec, 1, precision, test_device()).unwrap();
                    for &piece in pieces {
                        let next = tokens().narrow(1, cache.len() as i64, piece as i64);
                        let logits = model.next_logits(&next, &mut cache).unwrap();
                        let expected = whole.select(1, cache.len() as i64 - 1);
                        let off = (logits - expected).abs().max().double_value(&[]) / scale;
                        let at = format!("{:?} in {precision:?} at {} of {pieces:?}", spec.kind, cache.len());
                        assert!(off < tolerance, "{at}: {off}");
                    }
                    assert_eq!(cache.len(), CONTEXT);
                }
            }
        }
    }

    #[test]
    fn a_full_cache_refuses_a_token_and_a_cleared_one_knows_nothing_of_the_past() {
        for spec in [tiny_gpt2(), tiny_llama()] {
            let model = model(&spec, Precision::F32);
            let mut cache = Cache::new(&spec, 1, Precision::F32, test_device()).unwrap();
            let one = Tensor::from_slice(&[9i64]).view([1, -1]).to_device(test_device());
            let alone = model.next_logits(&one, &mut cache).unwrap();
            cache.clear();
            assert!(cache.is_empty());
            let _ = model.next_logits(&tokens(), &mut cache).unwrap();
            assert!(model.next_logits(&one, &mut cache).is_err());
            assert_eq!(cache.len(), CONTEXT);
            cache.clear();
            assert_eq!(model.next_logits(&one, &mut cache).unwrap(), alone);
            assert_eq!(alone.kind(), Kind::Float);
        }
    }

    #[test]
    fn nothing_that_is_kept_belongs_to_autograd() {
        let spec = tiny_llama();
        let mut cache = Cache::new(&spec, 1, Precision::F32, test_device()).unwrap();
        let logits = model(&spec, Precision::F32).next_logits(&tokens(), &mut cache).unwrap();
        assert!(!logits.requires_grad());
        assert!(cache.layers.iter().flatten().all(|kept| !kept.requires_grad()));
    }
}
