//! The residual stream between blocks: all of it, within a subspace, or narrow at some places.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::ModelSpec;
use super::initial::{normal, orthonormal};
use super::parameters::DEVIATION;
use crate::config::{BottleneckConfig, ModelConfig};

/// The form of the residual stream of a model of width d.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// d values per token.
    #[default]
    Full,
    /// A fixed part, and so many values per token in a fixed subspace (Ramasinghe et al. 2025, arXiv 2506.01260).
    Subspace(u32),
    /// d values per token, and fewer behind some layers (after Aboudib et al. 2026, arXiv 2604.11947).
    Bottlenecks(Arc<BottleneckConfig>),
}

impl Stream {
    /// Returns that of a checked configuration.
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        match (config.subspace, &config.bottleneck) {
            (Some(width), _) => Self::Subspace(width),
            (None, Some(bottleneck)) => Self::Bottlenecks(Arc::new(bottleneck.clone())),
            (None, None) => Self::Full,
        }
    }
}

/// Seed of fixed values, for all runs: a model is complete with its description and its trained parameters.
const SEED: u64 = 0x005b_59ac_e000_0001;

/// Fixed values of a model within a subspace.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedValues {
    /// Orthonormal rows [k, d].
    pub basis: Vec<f32>,
    /// The fixed part of the token embedding [V, d].
    pub tokens: Vec<f32>,
    /// The fixed part of the positions [C, d].
    pub positions: Vec<f32>,
}

impl ModelSpec {
    /// Returns the width of the subspace of the residual stream; `None`: it is in none.
    #[must_use]
    pub fn subspace(&self) -> Option<u32> {
        match self.stream {
            Stream::Subspace(width) => Some(width),
            Stream::Full | Stream::Bottlenecks(_) => None,
        }
    }

    /// Returns the width of the bottleneck behind this layer, counted from 0; `None`: there is none.
    #[must_use]
    pub fn bottleneck_behind(&self, layer: u32) -> Option<u32> {
        let Stream::Bottlenecks(of) = &self.stream else { return None };
        // Before the head there is none.
        let is_one = layer + 1 < self.layers && of.behind.contains(&(layer + 1));
        is_one.then_some(of.width)
    }

    /// Returns the values of a token that a block sends to the next.
    #[must_use]
    pub fn stream_width(&self, block: u32) -> u32 {
        let bottleneck = || self.bottleneck_behind(block.checked_sub(1)?);
        self.subspace().or_else(bottleneck).unwrap_or(self.width)
    }

    /// Whether a stage may end with this block without more to send than elsewhere: anywhere, or at a bottleneck if there are any.
    #[must_use]
    pub fn is_cut_behind(&self, block: u32) -> bool {
        let is_last = block == self.head();
        is_last || !matches!(self.stream, Stream::Bottlenecks(_)) || self.stream_width(block) < self.width
    }

    /// Returns the number of fixed values that each stage has: those of [`Self::fixed_values`].
    #[must_use]
    pub fn fixed_count(&self) -> u64 {
        let rows = |subspace: u32| u64::from(subspace) + u64::from(self.vocabulary) + u64::from(self.context);
        self.subspace().map_or(0, |subspace| rows(subspace) * u64::from(self.width))
    }

    /// Draws the fixed values: equal on every machine and in every run. `None`: the stream is in no subspace.
    #[must_use]
    pub fn fixed_values(&self) -> Option<FixedValues> {
        let rng = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(SEED);
            rng.set_stream(stream);
            rng
        };
        let subspace = self.subspace()?;
        let table = |stream: u64, rows: u32| -> Vec<f32> {
            let count = rows as usize * self.width as usize;
            normal(rng(stream)).take(count).map(|value| (value * DEVIATION) as f32).collect()
        };
        let basis = orthonormal(rng(0), subspace as usize, self.width as usize);
        Some(FixedValues { basis, tokens: table(1, self.vocabulary), positions: table(2, self.context) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Precision;
    use crate::model::tiny::{tiny_bottleneck, tiny_gpt2, tiny_subspace};
    use crate::model::{ParameterSpec, draw_parameters};

    fn shape(spec: &ModelSpec, name: &str) -> Option<Vec<u64>> {
        spec.parameters().into_iter().find(|tensor| tensor.name == name).map(|tensor| tensor.shape)
    }

    /// The largest distance of the products of rows [rows, columns] from those of orthonormal ones.
    fn off_orthonormal(rows: &[f32], columns: usize) -> f64 {
        let mut off = 0.0_f64;
        for (i, a) in rows.chunks(columns).enumerate() {
            for (j, b) in rows.chunks(columns).enumerate() {
                let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                off = off.max((product - f64::from(u8::from(i == j))).abs());
            }
        }
        off
    }

    #[test]
    fn a_basis_is_orthonormal_and_the_same_on_every_machine() {
        let fixed = tiny_subspace(true).fixed_values().unwrap();
        assert_eq!(
            (fixed.basis.len(), fixed.tokens.len(), fixed.positions.len()),
            (6 * 32, 64 * 32, 16 * 32)
        );
        assert!(off_orthonormal(&fixed.basis, 32) < 1e-6);
        let all = [fixed.basis, fixed.tokens, fixed.positions].concat();
        assert_eq!(all.len() as u64, tiny_subspace(true).fixed_count());
        let bytes: Vec<u8> = all.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(blake3::hash(&bytes).to_hex()[..16], *"6c95748a56bce6a9");
        assert_eq!((tiny_gpt2().fixed_values(), tiny_gpt2().fixed_count()), (None, 0));
    }

    #[test]
    fn what_writes_into_the_stream_is_as_narrow_as_the_subspace() {
        let spec = tiny_subspace(true);
        for (name, expected) in [
            ("transformer.wte.weight", vec![64, 6]),
            ("transformer.wpe.weight", vec![16, 6]),
            ("transformer.h.0.attn.c_attn.weight", vec![32, 96]),
            ("transformer.h.1.attn.c_proj.weight", vec![32, 6]),
            ("transformer.h.1.attn.c_proj.bias", vec![6]),
            ("transformer.h.1.mlp.c_fc.weight", vec![32, 128]),
            ("transformer.h.1.mlp.c_proj.weight", vec![128, 6]),
            ("transformer.h.1.mlp.c_proj.bias", vec![6]),
            ("transformer.ln_f.weight", vec![32]),
        ] {
            assert_eq!(shape(&spec, name), Some(expected), "{name}");
        }
        assert_eq!(shape(&tiny_subspace(false), "lm_head.weight"), Some(vec![64, 32]));
        let borrowed = spec.part(std::iter::once(2..4).collect()).borrowed().unwrap();
        assert_eq!(borrowed.shape, [64, 6], "the trained part alone is lent");
        assert!((0..3).all(|block| spec.stream_width(block) == 6));
    }

    #[test]
    fn a_bottleneck_ends_one_layer_and_begins_the_next_with_the_same_directions() {
        let spec = tiny_bottleneck();
        assert_eq!([0, 1, 2, 3].map(|block| spec.stream_width(block)), [32, 32, 6, 32]);
        assert_eq!([0, 1, 2, 3, 4].map(|block| spec.is_cut_behind(block)), [false, false, true, false, true]);
        let names =
            ["transformer.h.1.bottleneck.encoder.weight", "transformer.h.2.bottleneck.decoder.weight"];
        assert_eq!(names.map(|name| shape(&spec, name)), [Some(vec![32, 6]), Some(vec![6, 32])]);
        let blocks = |name: &str| {
            (0..5)
                .filter(|block| {
                    spec.part(std::iter::once(*block..block + 1).collect())
                        .parameters()
                        .iter()
                        .any(|tensor| tensor.name == name)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(names.map(blocks), [vec![2], vec![3]]);
        let (drawn, mut start) = (draw_parameters(&spec, 7), 0);
        let mut found = Vec::new();
        for tensor in spec.parameters() {
            let values = &drawn[start..start + tensor.count() as usize];
            start += values.len();
            found.extend(names.contains(&tensor.name.as_str()).then(|| values.to_vec()));
        }
        assert!(off_orthonormal(&found[1], 32) < 1e-6);
        let transposed: Vec<f32> = (0..32 * 6).map(|at| found[1][at % 6 * 32 + at / 6]).collect();
        assert_eq!(found[0], transposed);
    }

    /// By hand: products of each block, and of a subspace the composition of the stream before each norm.
    #[test]
    fn costs_are_of_the_narrow_products() {
        let forward = |spec: &ModelSpec| {
            spec.blocks(0, Precision::F32)
                .iter()
                .map(|block| block.forward_flops_per_token)
                .collect::<Vec<_>>()
        };
        let (d, k, f, v) = (32, 6, 128, 64);
        let layer = 2 * (3 * d * d + d * k + d * f + f * k) + 2 * 2 * d * k;
        let subspace = tiny_subspace(true);
        assert_eq!(forward(&subspace), [0, layer, layer, 2 * (d * v + d * k + k * v) + 2 * d * k]);
        assert_eq!(forward(&tiny_subspace(false))[3], 2 * d * v + 2 * d * k);
        let layer = 2 * (4 * d * d + 2 * d * f);
        assert_eq!(forward(&tiny_bottleneck()), [0, layer, layer + 2 * d * k, layer + 2 * d * k, 2 * d * v]);
        for spec in [subspace, tiny_subspace(false), tiny_bottleneck()] {
            let blocks = spec.blocks(16, Precision::F32);
            let count: u64 = spec.parameters().iter().map(ParameterSpec::count).sum();
            assert_eq!(blocks.iter().map(|block| block.parameters).sum::<u64>(), count);
            let sent: Vec<u64> = blocks.iter().map(|block| block.boundary_bytes_per_token).collect();
            let widths: Vec<u64> =
                (0..spec.head()).map(|block| 4 * u64::from(spec.stream_width(block))).collect();
            assert_eq!(sent, [widths, vec![0]].concat());
            assert!(blocks.iter().all(|block| block.fixed_bytes == 4 * spec.fixed_count()));
            // Weights' gradients are of the products' weights alone.
            let weights: u64 = blocks.iter().map(|block| block.weight_flops_per_token).sum();
            let products: u64 =
                spec.products().iter().map(|product| 2 * product.inputs * product.outputs).sum();
            assert_eq!(weights, products);
        }
    }
}
