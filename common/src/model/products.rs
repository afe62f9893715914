//! The matrix products of a model, and those with sparse backward passes.

use std::num::NonZeroU32;

use super::ModelSpec;
use super::experts::is_router;
use super::parameters;
use crate::config::{ModelKind, SparseBackwardConfig};

/// A matrix product of the model, or of a share of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// Name of its weight.
    pub weight: String,
    /// Block.
    pub block: u32,
    /// Inputs per token.
    pub inputs: u64,
    /// Outputs per token.
    pub outputs: u64,
}

impl ModelSpec {
    /// Returns the name of the output projection's weight: that of the token embedding, if tied.
    #[must_use]
    pub fn output_projection(&self) -> &'static str {
        let tied = parameters::token_embedding(self.kind).filter(|_| self.tied_embeddings);
        tied.unwrap_or_else(|| parameters::own_output(self.kind))
    }

    /// Returns all matrix products of this share, for all blocks, in no particular order. Excludes
    /// convolutions, routers and experts.
    #[must_use]
    pub fn products(&self) -> Vec<Product> {
        let all = parameters::in_model_order(self).into_iter();
        all.filter_map(|(block, tensor)| {
            let is_output = tensor.name == self.output_projection();
            let [first, second] = *tensor.shape else { return None };
            // The router computes in f32, all of it.
            if block == 0 && !is_output || is_router(&tensor.name) {
                return None;
            }
            // GPT-2's layers have [in, out]; everything else has [out, in].
            let (inputs, outputs) = match (self.kind, is_output) {
                (ModelKind::Gpt2, false) => (first, second),
                _ => (second, first),
            };
            let block = if is_output { self.head() } else { block };
            Some(Product { weight: tensor.name, block, inputs, outputs })
        })
        .collect()
    }

    /// Returns the products within blocks, whose weights are two-dimensional and neither embeddings nor the output projection: those that Muon updates.
    #[must_use]
    pub fn hidden_products(&self) -> Vec<Product> {
        let output = self.output_projection();
        self.products().into_iter().filter(|product| product.weight != output).collect()
    }

    /// Returns those of [`Self::sparse_products`] whose weights have no gradient except the product's
    /// columns: all but a tied output projection, which is also the embedding. The flag: values of a column
    /// are adjacent.
    #[must_use]
    pub fn column_products(&self, sparse: &SparseBackwardConfig) -> Vec<(Product, bool)> {
        let is_shared =
            |product: &Product| self.tied_embeddings && product.weight == self.output_projection();
        let own = self.sparse_products(sparse).into_iter().filter(|(product, _)| !is_shared(product));
        let by_column =
            |product: &Product| self.kind != ModelKind::Gpt2 || product.weight == self.output_projection();
        own.map(|(product, _)| (by_column(&product), product))
            .map(|(by_column, product)| (product, by_column))
            .collect()
    }

    /// Returns the products with a sparse backward pass, and the number of columns, or of values per row,
    /// kept of the output gradient. A member of a tensor group selects within its own share.
    #[must_use]
    pub fn sparse_products(&self, sparse: &SparseBackwardConfig) -> Vec<(Product, NonZeroU32)> {
        let meant = self.products().into_iter().filter(|product| sparse.includes(self, &product.weight));
        meant
            .filter_map(|product| {
                let kept = sparse.kept(product.outputs);
                let part = u32::try_from(kept).ok().and_then(NonZeroU32::new);
                part.filter(|_| kept < product.outputs).map(|part| (product, part))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::config;
    use super::*;
    use crate::config::SparseMode;

    fn sparse(keep: f64, layers: &[&str]) -> SparseBackwardConfig {
        let layers = layers.iter().map(|&pattern| pattern.to_owned()).collect();
        SparseBackwardConfig { keep, mode: SparseMode::Columns, layers }
    }

    #[test]
    fn products_are_all_matrices_but_embeddings_as_they_multiply() {
        for (kind, tied) in [(ModelKind::Gpt2, true), (ModelKind::Gpt2, false), (ModelKind::Llama, false)] {
            let mut config = config(kind, 2, 64, 4, 16);
            config.tied_embeddings = Some(tied);
            let spec = ModelSpec::resolve(&config, 100).unwrap();
            let products = spec.products();
            let blocks = spec.blocks(0, crate::config::Precision::F32);
            for block in 0..4 {
                let own = products.iter().filter(|product| product.block == block);
                let flops: u64 = own.map(|product| 2 * product.inputs * product.outputs).sum();
                assert_eq!(flops, blocks[block as usize].forward_flops_per_token, "{kind:?}, block {block}");
            }
            let output = products.iter().find(|product| product.block == 3).unwrap();
            assert_eq!((output.inputs, output.outputs), (64, 100));
        }
    }

    #[test]
    fn hidden_products_are_neither_embeddings_nor_the_output() {
        for (kind, tied, of_layer) in
            [(ModelKind::Gpt2, true, 4), (ModelKind::Gpt2, false, 4), (ModelKind::Qwen3, false, 7)]
        {
            let mut config = config(kind, 2, 64, 4, 16);
            config.tied_embeddings = Some(tied);
            let hidden = ModelSpec::resolve(&config, 100).unwrap().hidden_products();
            assert_eq!(hidden.len(), 2 * of_layer, "{hidden:?}");
            let is_of_layer =
                |product: &Product| product.weight.contains(".0.") || product.weight.contains(".1.");
            assert!(hidden.iter().all(is_of_layer), "{hidden:?}");
        }
    }

    #[test]
    fn a_share_keeps_columns_of_its_own() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 1, 64, 4, 16), 100).unwrap();
        let kept = |spec: &ModelSpec| {
            let of = |(product, kept): (Product, NonZeroU32)| (product.outputs, kept.get());
            spec.sparse_products(&sparse(0.25, &["*"])).into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(kept(&spec), [(192, 48), (64, 16), (256, 64), (64, 16)]);
        let share = &spec.shards(2).unwrap()[1];
        assert_eq!(kept(share), [(96, 24), (64, 16), (128, 32), (64, 16)]);
        assert!(spec.sparse_products(&sparse(1.0, &["*"])).is_empty());
        let one = spec.sparse_products(&sparse(0.5, &["transformer.wte.weight"]));
        assert_eq!(
            one.iter().map(|(product, kept)| (product.block, kept.get())).collect::<Vec<_>>(),
            [(2, 50)]
        );
    }
}
