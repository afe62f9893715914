//! Costs of a model's blocks in parameters, arithmetic and memory.
//!
//! A multiply-add counts as two FLOPs, backward as twice forward (one product each for the gradients of input
//! and weight), and attention as if it were not causal, as in PaLM's model-FLOPs utilisation (Chowdhery et
//! al. 2022, appendix B). Norms, activations and softmax are omitted: below one per cent at any useful width.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::tuning::is_adapter;
use super::{Experts, Head, ModelSpec, NormPlaces, ParameterSpec, Tuning, parameters};
use crate::config::{FrozenFormat, Precision, RunConfig, SparseMode};

/// A part of a model that stages do not divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Block {
    /// Token (and position) embeddings; in a classifier, conversion of pixels.
    Embedding,
    /// A transformer block, or a hidden layer of a classifier.
    Layer(u32),
    /// The last norm (not in a classifier), the output projection and the loss.
    Head,
}

/// Costs of one block. In image classifiers each image counts as one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockCost {
    /// Block.
    pub block: Block,
    /// Trained parameters. A tied output projection counts with the embedding.
    pub parameters: u64,
    /// Memory of frozen parameters.
    pub frozen_bytes: u64,
    /// Memory of a frozen token embedding that is the output projection as well, of a head on another stage.
    #[serde(default)]
    pub tied_frozen_bytes: u64,
    /// Memory of fixed values that a stage has once, whatever its blocks.
    #[serde(default)]
    pub fixed_bytes: u64,
    /// Memory of the largest frozen matrix in the format of products: one is decoded at a time.
    #[serde(default)]
    pub decoded_bytes: u64,
    /// FLOPs of the forward pass for one token.
    pub forward_flops_per_token: u64,
    /// FLOPs of the backward pass for one token.
    pub backward_flops_per_token: u64,
    /// Part of those only for gradients of weights in matrix products, which a schedule may defer.
    pub weight_flops_per_token: u64,
    /// Memory from the forward pass to the backward pass, per token.
    pub activation_bytes_per_token: u64,
    /// The same, independent of the tokens: copies of weights in the format of products, if it differs.
    pub cast_bytes: u64,
    /// Memory kept by a backward pass with deferred gradients of weights, per token: inputs of all matrix
    /// products, and gradients of their outputs.
    pub left_bytes_per_token: u64,
    /// Bytes per token sent to the next block: the residual stream in f32; none after the head.
    pub boundary_bytes_per_token: u64,
}

impl BlockCost {
    /// Takes only `part` of `whole` tokens into account: an encoder's head sees predicted tokens alone.
    fn of_share(&mut self, part: u64, whole: u64) {
        for number in [
            &mut self.forward_flops_per_token,
            &mut self.backward_flops_per_token,
            &mut self.weight_flops_per_token,
            &mut self.activation_bytes_per_token,
            &mut self.left_bytes_per_token,
        ] {
            *number = (*number * part).div_ceil(whole);
        }
    }
}

impl ModelSpec {
    /// Returns the costs of all blocks, in order, for sequences of `sequence` tokens: of the whole model, or
    /// of a share of its layers.
    #[must_use]
    pub fn blocks(&self, sequence: u32, precision: Precision) -> Vec<BlockCost> {
        if let Some(classifier) = &self.classifier {
            return classifier.blocks(self.vocabulary, precision);
        }
        let mut blocks = vec![self.embedding_cost(precision)];
        blocks.extend((0..self.layers).map(|layer| self.layer_cost(layer, sequence, precision)));
        blocks.push(self.head_cost(precision));
        if let Some(tuning) = &self.tuning {
            self.count_frozen(tuning, precision, &mut blocks);
        }
        blocks
    }

    /// Counts frozen parameters, whose gradients are not computed, and adapters beside them.
    fn count_frozen(&self, tuning: &Tuning, precision: Precision, blocks: &mut [BlockCost]) {
        let trained = self.trained_in_model_order();
        let (every, multiplied) = (parameters::in_model_order(self), self.multiplied());
        for (index, cost) in (0..).zip(blocks) {
            let all = every.iter().filter(|(block, _)| *block == index).map(|(_, tensor)| tensor);
            let all: Vec<&ParameterSpec> = all.collect();
            let of_block = trained.iter().filter(|(block, _)| *block == index).map(|(_, tensor)| tensor);
            cost.parameters = of_block.clone().map(ParameterSpec::count).sum();
            let adapters: u64 = of_block.filter(|t| is_adapter(&t.name)).map(ParameterSpec::count).sum();
            let frozen = all.iter().filter(|tensor| !tuning.trains(&tensor.name));
            cost.frozen_bytes =
                frozen.clone().map(|tensor| frozen_bytes(tensor, tuning.base, &multiplied)).sum();
            let decoded =
                frozen.filter(|tensor| multiplied.contains(&tensor.name)).map(|tensor| tensor.count());
            cost.decoded_bytes = decoded.max().unwrap_or(0) * decoded_bytes(tuning.base, precision);
            if cost.block == Block::Head && self.tied_embeddings && !self.ties_trained_embedding() {
                let tied = every.iter().find(|(_, tensor)| tensor.name == self.output_projection());
                if let Some((_, tied)) = tied {
                    cost.tied_frozen_bytes = frozen_bytes(tied, tuning.base, &multiplied);
                    // Embeddings have no codes.
                    let format = match tuning.base {
                        FrozenFormat::F32 => FrozenFormat::F32,
                        FrozenFormat::Bf16 | FrozenFormat::Int8 | FrozenFormat::Nf4 => FrozenFormat::Bf16,
                    };
                    let decoded = tied.count() * decoded_bytes(format, precision);
                    cost.decoded_bytes = cost.decoded_bytes.max(decoded);
                }
            }
            // Frozen weights are not kept as casts.
            if cost.cast_bytes > 0 {
                cost.cast_bytes = bytes_of(Precision::Bf16) * cost.parameters;
            }
            // Unfrozen matrices are few: their products count as frozen.
            let weights = cost.weight_flops_per_token;
            cost.forward_flops_per_token += 2 * adapters;
            cost.backward_flops_per_token =
                cost.backward_flops_per_token.saturating_sub(weights) + 4 * adapters;
            cost.weight_flops_per_token = 2 * adapters;
        }
    }

    /// Returns the costs of all blocks in a run.
    #[must_use]
    pub fn blocks_in(&self, config: &RunConfig) -> Vec<BlockCost> {
        let train = &config.train;
        let mut blocks = self.blocks(config.data.sequence_length, train.precision);
        self.count_dropout(config, &mut blocks);
        let length = config.data.sequence_length.max(1);
        let predicted = match (&config.data.masking, &config.data.classification) {
            (Some(masking), _) => Some((masking.share * f64::from(length)).ceil() as u64),
            (None, Some(_)) => Some(1),
            (None, None) => None,
        };
        if let (Some(predicted), Some(head)) = (predicted, blocks.last_mut()) {
            head.of_share(predicted, length.into());
        }
        // Zeros within rows save no multiplications.
        let sparse = train.sparse_backward.as_ref().filter(|sparse| sparse.mode == SparseMode::Columns);
        for (product, kept) in sparse.map(|sparse| self.sparse_products(sparse)).unwrap_or_default() {
            let Some(block) = blocks.get_mut(product.block as usize) else { continue };
            let left_out = product.outputs.saturating_sub(u64::from(kept.get()));
            let saved = 2 * product.inputs * left_out;
            let products = if self.hands_gradient_on(product.block) { 2 } else { 1 };
            block.backward_flops_per_token = block.backward_flops_per_token.saturating_sub(products * saved);
            block.weight_flops_per_token = block.weight_flops_per_token.saturating_sub(saved);
        }
        blocks
    }

    /// Counts what dropout keeps: masks of a byte a value, attention weights of all heads before and behind it, and inputs of adapters behind it.
    fn count_dropout(&self, config: &RunConfig, blocks: &mut [BlockCost]) {
        let train = &config.train;
        let is_there = |rate: Option<f64>| rate.is_some_and(|rate| rate > 0.0);
        let scores = u64::from(config.data.sequence_length) * u64::from(self.heads / self.shard.ways());
        for cost in blocks.iter_mut() {
            let (masks, layers) = match cost.block {
                Block::Embedding => (1, 0),
                Block::Layer(_) => (2, 1),
                Block::Head => (0, 0),
            };
            if is_there(train.dropout) {
                cost.activation_bytes_per_token += masks * u64::from(self.width);
            }
            if is_there(train.attention_dropout) {
                cost.activation_bytes_per_token += layers * scores * (4 + 1 + bytes_of(train.precision));
            }
        }
        let lora = self.tuning.as_ref().and_then(|tuning| tuning.lora.as_ref());
        let Some(lora) = lora.filter(|lora| lora.dropout > 0.0) else { return };
        for product in self.products() {
            if let (Some(cost), true) =
                (blocks.get_mut(product.block as usize), lora.weights.contains(&product.weight))
            {
                cost.activation_bytes_per_token += product.inputs * (1 + bytes_of(train.precision));
            }
        }
    }

    /// Whether parameters precede this block, so that its backward pass computes the gradient of its input.
    fn hands_gradient_on(&self, block: u32) -> bool {
        self.classifier.is_none() || block > 1
    }

    /// Returns the FLOPs of one token's forward and backward pass through all blocks.
    #[must_use]
    pub fn train_flops_per_token(&self, sequence: u32) -> u64 {
        let blocks = self.blocks(sequence, Precision::F32);
        blocks.iter().map(|cost| cost.forward_flops_per_token + cost.backward_flops_per_token).sum()
    }

    fn embedding_cost(&self, precision: Precision) -> BlockCost {
        let (d, narrow) = (u64::from(self.width), bytes_of(precision));
        // An encoder's has a norm, and a product if it is of another width.
        let of_encoder = self.encoder.as_ref().map(|encoder| u64::from(encoder.embedding_width));
        let product = of_encoder.filter(|e| *e != d);
        let products = product.map_or(0, |e| e * d);
        let kept = of_encoder.map_or(0, |e| 4 * (e + 2)) + product.map_or(0, |e| e * narrow);
        BlockCost {
            block: Block::Embedding,
            parameters: self.parameters_in(0),
            frozen_bytes: 0,
            tied_frozen_bytes: 0,
            fixed_bytes: 4 * self.fixed_count(),
            decoded_bytes: 0,
            forward_flops_per_token: 2 * products,
            backward_flops_per_token: 4 * products,
            weight_flops_per_token: 2 * products,
            // The token, as a 64-bit index.
            activation_bytes_per_token: 8 + kept,
            cast_bytes: products * cast_of(precision),
            left_bytes_per_token: product.map_or(0, |e| (e + d) * narrow),
            boundary_bytes_per_token: 4 * u64::from(self.stream_width(0)),
        }
    }

    fn layer_cost(&self, layer: u32, sequence: u32, precision: Precision) -> BlockCost {
        let [d, f, q, kv] =
            [self.width, self.feed_forward_width, self.query_width(), self.kv_width()].map(u64::from);
        let feed_forward_matrices = if self.kind.is_decoder() { 3 } else { 2 };
        let experts = self.decoder.as_ref().and_then(|decoder| decoder.experts_of(layer));
        let mixture = experts.map_or(Mixture::default(), |experts| Mixture::of(experts, d));
        let f = if experts.is_some() { 0 } else { f };
        // Values that attention and feed-forward part add, and those of bottlenecks.
        let k = u64::from(self.subspace().unwrap_or(self.width));
        let before = layer.checked_sub(1).and_then(|before| self.bottleneck_behind(before));
        let bottlenecks = u64::from(before.unwrap_or(0) + self.bottleneck_behind(layer).unwrap_or(0));
        let inner = (feed_forward_matrices - 1) * d * f;
        let products = d * q + q * k + 2 * d * kv + inner + f * k + bottlenecks * d;
        // The stream is composed before each norm.
        let composed = 2 * self.composed();
        // Tokens that each token attends to.
        let window = self.decoder.as_ref().and_then(|decoder| decoder.window_of(layer));
        let seen = u64::from(window.map_or(sequence, |window| window.min(sequence)));
        let ways = u64::from(self.shard.ways());
        // Scores and the weighted sum of values: a multiply-add for each channel and earlier token, twice.
        let forward = (2 * products + 4 * seen * q) / ways + 2 * mixture.multiplications + composed;
        // In compute precision: the outputs of both norms, and of a share queries, keys, values, the output
        // of attention, and inside the feed-forward part the input and output of each element-wise operation.
        let narrow = 2 * d + (2 * q + 2 * kv + 2 * (feed_forward_matrices - 1) * f) / ways + mixture.narrow;
        // In f32: the residual stream before each norm, the norms' statistics, the softmax's logarithms.
        let statistics = if self.kind.is_decoder() { 2 } else { 4 };
        let behind = if self.decoder.as_ref().is_some_and(|decoder| decoder.norms == NormPlaces::Both) {
            // The outputs of attention and feed-forward part, and the statistics of their norms.
            2 * d + 2
        } else {
            0
        };
        let wide = 2 * d + behind + statistics + u64::from(self.heads) / ways + mixture.wide;
        // Inputs of products are the norms' outputs, and of a share the output of attention and the inside of
        // the feed-forward part. Outputs are the two additions to the stream, and of a share queries, keys
        // and values, and the inside of the feed-forward part before its operations.
        let left = 2 * (d + k) + bottlenecks + (2 * q + 2 * kv + feed_forward_matrices * f) / ways;
        BlockCost {
            block: Block::Layer(layer),
            parameters: self.parameters_in(layer + 1),
            frozen_bytes: 0,
            tied_frozen_bytes: 0,
            fixed_bytes: 4 * self.fixed_count(),
            decoded_bytes: 0,
            forward_flops_per_token: forward,
            backward_flops_per_token: 2 * forward - composed,
            weight_flops_per_token: 2 * products / ways,
            activation_bytes_per_token: narrow * bytes_of(precision) + wide * 4,
            cast_bytes: products / ways * cast_of(precision),
            left_bytes_per_token: left * bytes_of(precision),
            boundary_bytes_per_token: 4 * u64::from(self.stream_width(layer + 1)),
        }
    }

    fn head_cost(&self, precision: Precision) -> BlockCost {
        let (d, v) = (u64::from(self.width), u64::from(self.vocabulary));
        // An encoder's head has a product of its own, and a norm.
        let (e, v) = match self.encoder.as_ref().map(|encoder| (encoder.head, encoder.embedding_width)) {
            None => (None, v),
            Some((Head::Masked, e)) => (Some(u64::from(e)), v),
            Some((Head::Classes(classes), _)) => (Some(d), u64::from(classes)),
            Some((Head::Replaced, _)) => (Some(d), 1),
            Some((Head::None, _)) => (Some(0), 0),
        };
        // A tied projection has a fixed part and a trained one.
        let tied = self.subspace().map(u64::from).filter(|_| self.tied_embeddings);
        let products = match (e, tied) {
            (Some(e), _) => e * (d + v),
            (None, Some(k)) => k * v,
            (None, None) => d * v,
        };
        let fixed = self.composed() + tied.map_or(0, |k| 2 * d * (v + k));
        let forward = 2 * products + fixed;
        // Its own product's output, and the norm's.
        let [own_wide, own_narrow] = e.map_or([0, 0], |e| [e, 2 * e]);
        let statistics = if self.kind.is_decoder() { 1 } else { 2 };
        BlockCost {
            block: Block::Head,
            parameters: self.parameters_in(self.head()),
            frozen_bytes: 0,
            tied_frozen_bytes: 0,
            fixed_bytes: 4 * self.fixed_count(),
            decoded_bytes: 0,
            forward_flops_per_token: forward,
            backward_flops_per_token: 2 * forward - fixed,
            weight_flops_per_token: 2 * products,
            // The norm's input, statistics and output, the logarithms of the probabilities, the target's
            // index.
            activation_bytes_per_token: 4 * (d + statistics + v + own_wide)
                + (d + own_narrow) * bytes_of(precision)
                + 8,
            cast_bytes: products * cast_of(precision),
            // The norm's output, and the gradient of the logits; of an encoder, those of its own product.
            left_bytes_per_token: (d + v + own_narrow) * bytes_of(precision),
            boundary_bytes_per_token: 0,
        }
    }

    /// Returns the FLOPs that compose a token's stream of its fixed part and that in the subspace.
    fn composed(&self) -> u64 {
        self.subspace().map_or(0, |k| 2 * u64::from(k) * u64::from(self.width))
    }

    fn parameters_in(&self, block: u32) -> u64 {
        let all = parameters::in_model_order(self);
        all.iter().filter(|(of, _)| *of == block).map(|(_, tensor)| tensor.count()).sum()
    }
}

/// Costs of a layer's experts for each token. Gradients of their weights are not deferred, and no copies of them are kept.
#[derive(Clone, Copy, Debug, Default)]
struct Mixture {
    /// Multiply-adds.
    multiplications: u64,
    /// Values kept in the format of products.
    narrow: u64,
    /// Values kept in f32.
    wide: u64,
}

impl Mixture {
    fn of(experts: &Experts, d: u64) -> Self {
        let [count, chosen, width] = [experts.count, experts.chosen, experts.width].map(u64::from);
        Self {
            multiplications: d * count + chosen * 3 * d * width,
            // Of each chosen expert its gate, its other rows, and its output.
            narrow: chosen * (2 * width + d),
            // The router's input and probabilities; of each chosen expert the weight, before and behind normalisation, and three indices of two values.
            wide: d + count + 8 * chosen,
        }
    }
}

/// Returns the bytes of a copy of an f32 weight.
pub(super) fn cast_of(precision: Precision) -> u64 {
    match precision {
        Precision::F32 => 0,
        Precision::Bf16 => bytes_of(precision),
    }
}

/// Returns the memory of a value of a frozen matrix while a product uses it.
fn decoded_bytes(format: FrozenFormat, precision: Precision) -> u64 {
    match (format, precision) {
        (FrozenFormat::F32, Precision::F32) | (FrozenFormat::Bf16, Precision::Bf16) => 0,
        (FrozenFormat::F32 | FrozenFormat::Bf16, _) => bytes_of(precision),
        // By way of f32.
        (FrozenFormat::Int8 | FrozenFormat::Nf4, _) => 4 + cast_of(precision),
    }
}

/// Returns the memory of a frozen tensor.
fn frozen_bytes(tensor: &ParameterSpec, format: FrozenFormat, multiplied: &BTreeSet<String>) -> u64 {
    let (count, rows) = (tensor.count(), tensor.shape[0]);
    match format {
        _ if !tensor.is_matrix() => 4 * count,
        FrozenFormat::F32 => 4 * count,
        FrozenFormat::Int8 if multiplied.contains(&tensor.name) => count + 4 * rows,
        FrozenFormat::Nf4 if multiplied.contains(&tensor.name) => count.div_ceil(2) + 4 * count.div_ceil(64),
        FrozenFormat::Bf16 | FrozenFormat::Int8 | FrozenFormat::Nf4 => 2 * count,
    }
}

pub(super) fn bytes_of(precision: Precision) -> u64 {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::config;
    use super::*;
    use crate::config::ModelKind;

    #[test]
    fn blocks_hold_every_parameter_once() {
        for kind in [ModelKind::Gpt2, ModelKind::Llama] {
            for tied in [true, false] {
                let mut config = config(kind, 11, 32, 4, 64);
                config.tied_embeddings = Some(tied);
                let spec = ModelSpec::resolve(&config, 100).unwrap();
                let blocks = spec.blocks(64, Precision::F32);
                assert_eq!(blocks.len(), 13);
                assert_eq!(blocks.iter().map(|b| b.parameters).sum::<u64>(), spec.parameter_count());
                assert!(blocks[1..12].iter().all(|b| b.parameters == blocks[1].parameters));
            }
        }
    }

    /// Kaplan et al. 2020, table 1: forward FLOPs of a token are 2·N without embeddings, plus 4·layers·T·D of
    /// attention here (half in the paper, as causal), and 2·D·V of the output projection.
    #[test]
    fn flops_follow_the_closed_form() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 12, 768, 12, 1024), 50_257).unwrap();
        let forward = 2 * 12 * 12 * 768 * 768 + 12 * 4 * 1024 * 768 + 2 * 768 * 50_257;
        assert_eq!(spec.train_flops_per_token(1024), 3 * forward);
    }

    /// For both products of a backward pass (Sun et al. 2017, "meProp").
    #[test]
    fn columns_that_are_left_out_cost_nothing_backwards() {
        let costs = |lines: &str| {
            let text = format!(
                "[run]\nname = \"x\"\nworkers = 1\nsteps = 1\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 64\nheads = 4\ncontext = 16\n\
                 [data]\npath = \"x\"\nsequence_length = 16\n{lines}"
            );
            let config = RunConfig::parse(&text).unwrap();
            ModelSpec::resolve(&config.model, 256).unwrap().blocks_in(&config)
        };
        let all = costs("");
        let quarter = costs("[train.sparse_backward]\nkeep = 0.25");
        let (attention, products) = (4 * 16 * 64, 12 * 64 * 64);
        assert_eq!(all[1].backward_flops_per_token, 2 * attention + 4 * products);
        assert_eq!(quarter[1].backward_flops_per_token, 2 * attention + products);
        assert_eq!(quarter[1].weight_flops_per_token, products / 2);
        assert_eq!((&quarter[0], &quarter[2]), (&all[0], &all[2]), "the head is not meant");
        let named = costs("[train.sparse_backward]\nkeep = 0.5\nlayers = [\"transformer.wte.weight\"]");
        assert_eq!(2 * named[2].backward_flops_per_token, all[2].backward_flops_per_token);
        assert_eq!(costs("[train.sparse_backward]\nkeep = 0.25\nmode = \"rows\""), all);
    }

    #[test]
    fn an_encoder_s_head_costs_as_much_as_it_predicts() {
        let text = "[run]\nname = \"x\"\nworkers = 1\nsteps = 1\n[model]\nkind = \"electra\"\nlayers = 1\nwidth = 64\nheads = 4\ncontext = 20\n\
                    [model.encoder]\nembedding_size = 16\n[data]\npath = \"x\"\nsequence_length = 20\ntokenizer = \"t\"\n";
        let costs = |more: &str| {
            let config = RunConfig::parse(&format!("{text}{more}")).unwrap();
            ModelSpec::resolve(&config.model, 100).unwrap().blocks_in(&config)
        };
        let (few, all) = (costs(""), costs("[data.masking]\nshare = 1.0"));
        assert_eq!(few[..2], all[..2]);
        assert_eq!(all[2].forward_flops_per_token, 2 * 16 * (64 + 100));
        // Three of twenty.
        assert_eq!(few[2].forward_flops_per_token, (2 * 16 * (64 + 100) * 3_u64).div_ceil(20));
        assert_eq!(few[2].parameters, all[2].parameters);
        assert_eq!((all[0].forward_flops_per_token, all[0].backward_flops_per_token), (2048, 4096));
        // Index, the norm's input and statistics in f32, and the product's input.
        assert_eq!(all[0].activation_bytes_per_token, 8 + 4 * (16 + 2) + 4 * 16);
        assert!(few[2].activation_bytes_per_token * 6 < all[2].activation_bytes_per_token);
    }

    /// Qi et al. 2023, table 1: of a layer, 24·T·D² FLOPs are for the gradients of weights, and 2·(24·T·D² +
    /// …) for the whole backward pass; 32·T·D bytes in half precision are kept for them.
    #[test]
    fn what_is_put_off_is_what_the_zero_bubble_paper_counts() {
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 1, 768, 12, 1024), 50_257).unwrap();
        let [embedding, layer, head] = &spec.blocks(1024, Precision::Bf16)[..] else {
            panic!("three blocks")
        };
        assert_eq!(layer.weight_flops_per_token, 24 * 768 * 768);
        assert_eq!(layer.left_bytes_per_token, 32 * 768);
        assert_eq!((embedding.weight_flops_per_token, embedding.left_bytes_per_token), (0, 0));
        assert_eq!(head.weight_flops_per_token, head.backward_flops_per_token / 2);
        assert_eq!(head.left_bytes_per_token, 2 * (768 + 50_257));
    }

    #[test]
    fn a_block_of_gpt2_in_half_precision_keeps_what_korthikanti_counts() {
        // Korthikanti et al. 2022, equation 1: 34·D bytes a token, and 5·heads·T of scores. Of these 2·D are
        // dropout masks; here attention keeps no scores, and the two norms read an f32 stream (4·D more).
        let spec = ModelSpec::resolve(&config(ModelKind::Gpt2, 1, 768, 12, 1024), 50_257).unwrap();
        let layer = &spec.blocks(1024, Precision::Bf16)[1];
        assert_eq!(layer.activation_bytes_per_token, (34 - 2 + 4) * 768 + 4 * (4 + 12));
    }
}
