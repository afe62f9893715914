//! A member's share of a model divided by a tensor group: heads and inner channels (Shoeybi et al. 2019,
//! "Megatron-LM", arXiv 1909.08053, section 3).

use std::ops::Range;

use super::{ModelSpec, ParameterSpec, QueryNorm, Stream};
use crate::config::ConfigError;

/// Share of each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    ways: u32,
    index: u32,
}

impl Shard {
    /// The whole.
    pub const WHOLE: Self = Self { ways: 1, index: 0 };

    /// Returns the size of the group.
    #[must_use]
    pub fn ways(self) -> u32 {
        self.ways
    }

    /// Returns the member's index, from 0.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the first of the member's share of so many heads or channels.
    #[must_use]
    pub fn first_of(self, all: u32) -> u32 {
        all / self.ways * self.index
    }

    /// Whether it is the whole.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.ways == 1
    }
}

/// Division of a parameter tensor in a tensor group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Each member has all of it.
    Replicated,
    /// Each member has an equal share of a dimension.
    Along {
        /// Dimension.
        dimension: usize,
        /// Number of equal consecutive parts of the dimension, each of which is shared: queries, keys and
        /// values in one tensor.
        parts: u64,
    },
}

impl ModelSpec {
    /// Returns the shares of a tensor group's members, by index.
    ///
    /// # Errors
    /// Names the count that the group cannot divide.
    pub fn shards(&self, ways: u32) -> Result<Vec<Self>, ConfigError> {
        self.check_ways(ways)?;
        Ok((0..ways).map(|index| self.with_shard(ways, index)).collect())
    }

    /// Returns the share of a member; `None`: no such member, or unequal shares.
    #[must_use]
    pub fn shard_of(&self, ways: u32, index: u32) -> Option<Self> {
        (index < ways && self.check_ways(ways).is_ok()).then(|| self.with_shard(ways, index))
    }

    fn with_shard(&self, ways: u32, index: u32) -> Self {
        Self { shard: Shard { ways, index }, ..self.clone() }
    }

    fn check_ways(&self, ways: u32) -> Result<(), ConfigError> {
        let divided = [
            ("model.heads", self.heads),
            ("model.kv_heads", self.kv_heads),
            ("model.feed_forward_width", self.feed_forward_width),
        ];
        let key = "parallel.tensor";
        let refused = |reason| Err(ConfigError::Value { key, value: ways.to_string(), reason });
        if ways == 0 {
            return refused("must be at least 1".to_owned());
        }
        let has_wide_norms = self.decoder.as_ref().is_some_and(|of| of.query_norm == Some(QueryNorm::Width));
        if ways > 1 && has_wide_norms {
            let reason =
                format!("{} norms queries over all heads, which are divided: take 1", self.kind.name());
            return refused(reason);
        }
        if ways > 1 && self.decoder.as_ref().is_some_and(|of| of.experts.is_some()) {
            let reason = "a tensor group does not divide experts: take 1, and stages (parallel.stages)";
            return refused(reason.to_owned());
        }
        if ways > 1 && self.stream != Stream::Full {
            let reason = "a tensor group does not divide model.subspace or model.bottleneck: take 1, and stages (parallel.stages)";
            return refused(reason.to_owned());
        }
        if ways > 1 && self.encoder.is_some() {
            return refused("encoders are not divided: take 1".to_owned());
        }
        if let Some((key, value)) = divided.into_iter().find(|(_, value)| !value.is_multiple_of(ways)) {
            return refused(format!("each member has an equal share of {key}, so it must divide {value}"));
        }
        Ok(())
    }

    /// Returns those of [`Self::parameters`] that this worker exchanges with other replicas, and saves: all,
    /// except in later members of a tensor group. The first member exchanges replicated parameters and
    /// forwards them.
    #[must_use]
    pub fn synchronised(&self) -> Vec<ParameterSpec> {
        let mut tensors = self.parameters();
        tensors.retain(|tensor| self.synchronises(tensor));
        tensors
    }

    /// Returns the length of the flat vector of [`Self::synchronised`].
    #[must_use]
    pub fn synchronised_count(&self) -> u64 {
        self.synchronised().iter().map(ParameterSpec::count).sum()
    }

    /// Whether this is one of [`Self::synchronised`].
    #[must_use]
    pub fn synchronises(&self, tensor: &ParameterSpec) -> bool {
        self.shard.index == 0 || !tensor.is_replicated()
    }
}

impl ParameterSpec {
    /// Returns this share of a tensor of the whole model.
    pub(super) fn of(mut self, shard: Shard) -> Self {
        if let Cut::Along { dimension, .. } = self.cut {
            self.shape[dimension] /= u64::from(shard.ways);
        }
        self
    }

    /// Returns the places of this share's values in the whole tensor, as stretches whose values are
    /// consecutive in the share. The last dimension is contiguous in both.
    pub fn places(&self, shard: Shard) -> impl Iterator<Item = Range<usize>> + use<> {
        let (ways, index) = (shard.ways as usize, shard.index as usize);
        let product = |sizes: &[u64]| sizes.iter().product::<u64>() as usize;
        let (rows, len, ways, index) = match self.cut {
            Cut::Replicated => (1, product(&self.shape), 1, 0),
            Cut::Along { dimension, parts } => {
                let (before, from) = self.shape.split_at(dimension);
                let rows = product(before) * parts as usize;
                (rows, product(from) / parts as usize, ways, index)
            }
        };
        (0..rows).map(move |row| {
            let start = (row * ways + index) * len;
            start..start + len
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::config;
    use super::*;
    use crate::config::{ModelKind, Precision};

    fn model(kind: ModelKind, tied: bool) -> ModelSpec {
        let mut config = config(kind, 2, 24, 12, 16);
        config.kv_heads = (kind == ModelKind::Llama).then_some(6);
        config.feed_forward_width = Some(96);
        config.tied_embeddings = Some(tied);
        ModelSpec::resolve(&config, 10).unwrap()
    }

    fn models() -> impl Iterator<Item = ModelSpec> {
        let kinds = [ModelKind::Gpt2, ModelKind::Llama];
        kinds.into_iter().flat_map(|kind| [true, false].map(|tied| model(kind, tied)))
    }

    #[test]
    fn one_share_of_one_is_the_whole_model() {
        for whole in models() {
            assert_eq!(whole.shard_of(3, 2).as_ref(), whole.shards(3).unwrap().last());
            assert!(whole.shard_of(3, 3).is_none() && whole.shard_of(5, 0).is_none());
            assert_eq!(whole.shards(1).unwrap(), [whole]);
        }
    }

    #[test]
    fn shapes_are_those_of_the_heads_and_channels_that_a_member_has() {
        let shape = |spec: &ModelSpec, name: &str| {
            spec.parameters()
                .into_iter()
                .find(|tensor| tensor.name.ends_with(name))
                .map(|tensor| tensor.shape)
        };
        let gpt2 = model(ModelKind::Gpt2, true).shards(3).unwrap().remove(1);
        for (name, expected) in [
            ("h.1.attn.c_attn.weight", vec![24, 24]),
            ("h.1.attn.c_attn.bias", vec![24]),
            ("h.1.attn.c_proj.weight", vec![8, 24]),
            ("h.1.attn.c_proj.bias", vec![24]),
            ("h.1.mlp.c_fc.weight", vec![24, 32]),
            ("h.1.mlp.c_fc.bias", vec![32]),
            ("h.1.mlp.c_proj.weight", vec![32, 24]),
            ("h.1.mlp.c_proj.bias", vec![24]),
            ("h.1.ln_2.bias", vec![24]),
            ("wte.weight", vec![10, 24]),
        ] {
            assert_eq!(shape(&gpt2, name), Some(expected), "{name}");
        }
        let llama = model(ModelKind::Llama, false).shards(2).unwrap().remove(1);
        for (name, expected) in [
            ("0.self_attn.q_proj.weight", vec![12, 24]),
            ("0.self_attn.k_proj.weight", vec![6, 24]),
            ("0.self_attn.v_proj.weight", vec![6, 24]),
            ("0.self_attn.o_proj.weight", vec![24, 12]),
            ("0.mlp.gate_proj.weight", vec![48, 24]),
            ("0.mlp.up_proj.weight", vec![48, 24]),
            ("0.mlp.down_proj.weight", vec![24, 48]),
            ("0.input_layernorm.weight", vec![24]),
            ("lm_head.weight", vec![10, 24]),
        ] {
            assert_eq!(shape(&llama, name), Some(expected), "{name}");
        }
    }

    /// Each value of a divided tensor is at one member, of a replicated one at all; shapes and places agree
    /// on the counts.
    #[test]
    fn the_members_together_have_each_value() {
        for whole in models() {
            for ways in [2, 3, 6] {
                let shards = whole.shards(ways).unwrap();
                for (at, tensor) in whole.parameters().into_iter().enumerate() {
                    let mut holders = vec![0; tensor.count() as usize];
                    for share in &shards {
                        let own = &share.parameters()[at];
                        assert_eq!((&own.name, own.cut), (&tensor.name, tensor.cut));
                        let places: Vec<_> = own.places(share.shard).collect();
                        assert_eq!(places.iter().map(Range::len).sum::<usize>() as u64, own.count());
                        places.into_iter().flatten().for_each(|place| holders[place] += 1);
                    }
                    let expected = if tensor.cut == Cut::Replicated { ways } else { 1 };
                    assert!(holders.iter().all(|count| *count == expected), "{}: {holders:?}", tensor.name);
                }
            }
        }
    }

    /// So a round sends each value of the whole model once.
    #[test]
    fn each_value_is_synchronised_by_one_member() {
        for whole in models() {
            assert_eq!(whole.synchronised(), whole.parameters());
            for ways in [2, 3, 6] {
                let shards = whole.shards(ways).unwrap();
                let all: u64 = shards.iter().map(ModelSpec::synchronised_count).sum();
                assert_eq!(all, whole.parameter_count());
                assert_eq!(shards[0].synchronised(), shards[0].parameters());
                assert!(shards[1].synchronised().iter().all(|tensor| tensor.cut != Cut::Replicated));
            }
        }
    }

    #[test]
    fn a_matrix_of_queries_keys_and_values_is_cut_in_each_of_its_thirds() {
        let whole = model(ModelKind::Gpt2, true);
        for share in whole.shards(2).unwrap() {
            let tensors = share.parameters();
            let of = |name: &str| tensors.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
            let first = share.shard.index() as usize * 12;
            let expected = [first, 24 + first, 48 + first].map(|start| start..start + 12);
            assert_eq!(of("h.0.attn.c_attn.bias").places(share.shard).collect::<Vec<_>>(), expected);
            // Two rows of the matrix.
            let rows: Vec<_> = of("h.0.attn.c_attn.weight").places(share.shard).take(6).collect();
            assert_eq!(rows[..3], expected);
            assert_eq!(rows[3..], expected.map(|place| place.start + 72..place.end + 72));
        }
    }

    #[test]
    fn counts_and_costs_are_those_of_the_share() {
        for whole in models() {
            let shares = whole.shards(3).unwrap();
            let cut = |tensor: &&ParameterSpec| tensor.cut != Cut::Replicated;
            let all = whole.parameters();
            let divided: u64 = all.iter().filter(cut).map(ParameterSpec::count).sum();
            for share in &shares {
                assert_eq!(share.parameter_count(), whole.parameter_count() - divided + divided / 3);
                let blocks = share.blocks(16, Precision::F32);
                assert_eq!(blocks.iter().map(|b| b.parameters).sum::<u64>(), share.parameter_count());
                assert_eq!(share.whole(), whole);
            }
            let flops = |spec: &ModelSpec| spec.blocks(16, Precision::F32)[1].forward_flops_per_token;
            assert_eq!(3 * flops(&shares[0]), flops(&whole));
            let bytes = |spec: &ModelSpec| spec.blocks(16, Precision::F32)[1].activation_bytes_per_token;
            assert!(bytes(&shares[0]) > bytes(&whole) / 3 && bytes(&shares[0]) < bytes(&whole));
        }
    }

    #[test]
    fn counts_that_the_members_cannot_divide_are_named() {
        let refusal = |spec: &ModelSpec, ways| spec.shards(ways).unwrap_err().to_string();
        let whole = model(ModelKind::Llama, true);
        assert!(refusal(&whole, 0).starts_with("parallel.tensor = 0: "));
        for (spec, ways, key) in [
            (whole.clone(), 5, "model.heads, so it must divide 12"),
            (whole.clone(), 4, "model.kv_heads, so it must divide 6"),
            (
                ModelSpec { feed_forward_width: 97, ..whole },
                2,
                "model.feed_forward_width, so it must divide 97",
            ),
        ] {
            let message = refusal(&spec, ways);
            assert!(message.contains(key), "{message}");
        }
    }
}
