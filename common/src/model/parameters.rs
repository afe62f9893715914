//! Parameter tensors of each family: language models with the names and shapes of Hugging Face, classifiers
//! as in `classifier.rs`.

use super::{Cut, Decoder, Experts, ModelSpec, QueryNorm};
use super::{classifier, encoder};
use crate::config::ModelKind;

/// One parameter tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// Name in a checkpoint, as in Hugging Face's for language models.
    pub name: String,
    /// Shape: one dimension, two, three for the matrices of experts, or four for a convolution's weight `[out, in, 3, 3]`; in a tensor group, of
    /// the member's share.
    pub shape: Vec<u64>,
    /// Division in a tensor group.
    pub cut: Cut,
    /// Initialisation.
    pub initial: Initial,
}

/// Initialisation of a parameter tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Drawn uniformly from within this distance of zero.
    Uniform {
        /// Distance.
        bound: f64,
    },
    /// Drawn from a normal distribution around zero.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// A matrix with orthonormal rows, or columns if those are fewer. All of one shape are equal, and those of the other are their transposes.
    Orthonormal,
}

impl ParameterSpec {
    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether it is a matrix, including embeddings and weights of convolutions. Weight decay applies to
    /// these.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }

    /// Whether each member of a tensor group has all of it.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.cut == Cut::Replicated
    }

    /// Returns the shape of the matrix that PowerSGD exchanges as two factors of this rank, if it has more
    /// than twice their values. `None`: it is exchanged whole.
    #[must_use]
    pub fn low_rank_shape(&self, rank: u32) -> Option<[u64; 2]> {
        match *self.shape {
            [rows, columns] if 2 * u64::from(rank) * (rows + columns) < rows * columns => {
                Some([rows, columns])
            }
            _ => None,
        }
    }

    /// Returns the values that PowerSGD exchanges of it per step.
    #[must_use]
    pub fn low_rank_count(&self, rank: u32) -> u64 {
        self.low_rank_shape(rank).map_or(self.count(), |[rows, columns]| u64::from(rank) * (rows + columns))
    }

    fn cut_along(self, dimension: usize) -> Self {
        self.cut_in(dimension, 1)
    }

    /// Divides each of `parts` equal parts of the dimension.
    fn cut_in(self, dimension: usize, parts: u64) -> Self {
        Self { cut: Cut::Along { dimension, parts }, ..self }
    }
}

const GPT2_TOKENS: &str = "transformer.wte.weight";
const DECODER_TOKENS: &str = "model.embed_tokens.weight";
/// Name of the output projection of language models, if untied.
const OUTPUT: &str = "lm_head.weight";

/// Returns the name of the token embedding; `None`: the model has no tokens.
pub(super) fn token_embedding(kind: ModelKind) -> Option<&'static str> {
    match kind {
        ModelKind::Gpt2 => Some(GPT2_TOKENS),
        ModelKind::Mlp | ModelKind::Cnn => None,
        _ => Some(encoder::token_embedding(kind).unwrap_or(DECODER_TOKENS)),
    }
}

/// Returns the name of the weight of an untied output projection.
pub(super) fn own_output(kind: ModelKind) -> &'static str {
    if kind.is_of_images() { classifier::OUTPUT } else { OUTPUT }
}

/// Standard deviation of both families' weights (Radford et al. 2019).
pub(super) const DEVIATION: f64 = 0.02;

/// A tensor with its block: 0 is the embedding, then the layers, then the head.
pub(super) type InBlock = (u32, ParameterSpec);

/// Returns all tensors of this share, from the embedding to the output projection.
pub(super) fn in_model_order(spec: &ModelSpec) -> Vec<InBlock> {
    let whole = match (&spec.classifier, &spec.decoder, &spec.encoder) {
        (Some(classifier), ..) => classifier.parameters(spec.vocabulary),
        (None, Some(of), _) => decoder(spec, of),
        (None, None, Some(of)) => of.parameters(spec),
        (None, None, None) => gpt2(spec),
    };
    whole.into_iter().map(|(block, tensor)| (block, tensor.of(spec.shard))).collect()
}

/// GPT-2. Its linear layers are `Conv1D`: [in, out].
fn gpt2(spec: &ModelSpec) -> Vec<InBlock> {
    let (d, f) = (u64::from(spec.width), u64::from(spec.feed_forward_width));
    // Every block adds to the residual stream twice; this preserves its variance (Radford et al. 2019,
    // section 2.3).
    let residual = DEVIATION / f64::from(2 * spec.layers).sqrt();
    // Within a subspace, fewer values add as much to it, and trained parts of embeddings are beside fixed ones.
    let subspace = spec.subspace().map(u64::from);
    let k = subspace.unwrap_or(d);
    let residual = residual * (d as f64 / k as f64).sqrt();
    let embedding = |name: &str, rows: u32| {
        let table = matrix(name, rows.into(), k, DEVIATION);
        if subspace.is_some() { ParameterSpec { initial: Initial::Zeros, ..table } } else { table }
    };
    let embeddings =
        [embedding(GPT2_TOKENS, spec.vocabulary), embedding("transformer.wpe.weight", spec.context)];
    let mut list: Vec<InBlock> = embeddings.map(|tensor| (0, tensor)).to_vec();
    let directions = |name: String, rows: u64, columns: u64| ParameterSpec {
        initial: Initial::Orthonormal,
        ..matrix(name, rows, columns, DEVIATION)
    };
    for layer in 0..spec.layers {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let before = layer.checked_sub(1).and_then(|before| spec.bottleneck_behind(before)).map(u64::from);
        let decoder = before.map(|r| directions(name("bottleneck.decoder.weight"), r, d));
        list.extend(decoder.map(|tensor| (layer + 1, tensor)));
        let tensors = [
            vector(name("ln_1.weight"), d, Initial::Ones),
            vector(name("ln_1.bias"), d, Initial::Zeros),
            matrix(name("attn.c_attn.weight"), d, 3 * d, DEVIATION).cut_in(1, 3),
            vector(name("attn.c_attn.bias"), 3 * d, Initial::Zeros).cut_in(0, 3),
            matrix(name("attn.c_proj.weight"), d, k, residual).cut_along(0),
            vector(name("attn.c_proj.bias"), k, Initial::Zeros),
            vector(name("ln_2.weight"), d, Initial::Ones),
            vector(name("ln_2.bias"), d, Initial::Zeros),
            matrix(name("mlp.c_fc.weight"), d, f, DEVIATION).cut_along(1),
            vector(name("mlp.c_fc.bias"), f, Initial::Zeros).cut_along(0),
            matrix(name("mlp.c_proj.weight"), f, k, residual).cut_along(0),
            vector(name("mlp.c_proj.bias"), k, Initial::Zeros),
        ];
        list.extend(tensors.map(|tensor| (layer + 1, tensor)));
        let behind = spec.bottleneck_behind(layer).map(u64::from);
        let encoder = behind.map(|r| directions(name("bottleneck.encoder.weight"), d, r));
        list.extend(encoder.map(|tensor| (layer + 1, tensor)));
    }
    let norm = ["weight", "bias"].map(|part| format!("transformer.ln_f.{part}"));
    let starts = [Initial::Ones, Initial::Zeros];
    list.extend(norm.into_iter().zip(starts).map(|(name, start)| (spec.head(), vector(name, d, start))));
    list.extend(output(spec).map(|tensor| (spec.head(), tensor)));
    list
}

/// A decoder. Its linear layers are [out, in].
fn decoder(spec: &ModelSpec, of: &Decoder) -> Vec<InBlock> {
    let [d, f, q, kv, head] =
        [spec.width, spec.feed_forward_width, spec.query_width(), spec.kv_width(), of.head_width]
            .map(u64::from);
    let unit = if of.unit_norms { Initial::Zeros } else { Initial::Ones };
    let mut list = vec![(0, matrix(DECODER_TOKENS, u64::from(spec.vocabulary), d, DEVIATION))];
    for layer in 0..spec.layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let norm = |part: &str, width: u64| vector(name(&format!("{part}.weight")), width, unit);
        let weight = |part: &str, out: u64, within: u64| {
            matrix(name(&format!("{part}.weight")), out, within, DEVIATION)
        };
        let bias = |has_one: bool, part: &str, width: u64| {
            has_one.then(|| vector(name(&format!("{part}.bias")), width, Initial::Zeros))
        };
        // A member of a tensor group has some of the outputs, or of the inputs.
        let by_row = |of: ParameterSpec| Some(of.cut_along(0));
        let by_column = |of: ParameterSpec| Some(of.cut_along(1));
        let cut_bias = |of: Option<ParameterSpec>| of.map(|of| of.cut_along(0));
        let [before, behind] = [of.norms.are_before(), of.norms.are_behind()];
        let of_heads = |part: &str, width: u64| match of.query_norm {
            None => None,
            Some(QueryNorm::Head) => Some(norm(part, head)),
            Some(QueryNorm::Width) => Some(norm(part, width)),
        };
        let experts = of.experts_of(layer);
        let [gate, up, down] = ["gate", "up", "down"].map(|part| format!("mlp.{part}_proj"));
        let dense = |tensor: Option<ParameterSpec>| tensor.filter(|_| experts.is_none());
        let feed_forward_norm = if behind { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        let tensors = [
            before.then(|| norm("input_layernorm", d)),
            by_row(weight("self_attn.q_proj", q, d)),
            cut_bias(bias(of.qkv_bias, "self_attn.q_proj", q)),
            by_row(weight("self_attn.k_proj", kv, d)),
            cut_bias(bias(of.qkv_bias, "self_attn.k_proj", kv)),
            by_row(weight("self_attn.v_proj", kv, d)),
            cut_bias(bias(of.qkv_bias, "self_attn.v_proj", kv)),
            of_heads("self_attn.q_norm", q),
            of_heads("self_attn.k_norm", kv),
            by_column(weight("self_attn.o_proj", d, q)),
            bias(of.out_bias, "self_attn.o_proj", d),
            behind.then(|| norm("post_attention_layernorm", d)),
            before.then(|| norm(feed_forward_norm, d)),
            dense(by_row(weight(&gate, f, d))),
            dense(cut_bias(bias(of.mlp_bias, &gate, f))),
            dense(by_row(weight(&up, f, d))),
            dense(cut_bias(bias(of.mlp_bias, &up, f))),
            dense(by_column(weight(&down, d, f))),
            dense(bias(of.mlp_bias, &down, d)),
            behind.then(|| norm("post_feedforward_layernorm", d)),
        ];
        list.extend(tensors.into_iter().flatten().map(|tensor| (layer + 1, tensor)));
        let experts = experts.into_iter().flat_map(|experts| mixture(experts, layer, d));
        list.extend(experts.map(|tensor| (layer + 1, tensor)));
    }
    list.push((spec.head(), vector("model.norm.weight", d, unit)));
    list.extend(output(spec).map(|tensor| (spec.head(), tensor)));
    list
}

/// Returns the tensors of a layer's experts, each kind of matrix as one: of its rows the gate's, then the others.
fn mixture(of: &Experts, layer: u32, d: u64) -> [ParameterSpec; 3] {
    let [count, width] = [of.count, of.width].map(u64::from);
    let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
    let stacked = |part: &str, rows: u64, columns: u64| {
        let shape = vec![count, rows, columns];
        ParameterSpec { shape, ..matrix(name(part), rows, columns, DEVIATION) }
    };
    [
        matrix(name("gate.weight"), count, d, DEVIATION),
        stacked("experts.gate_up_proj", 2 * width, d),
        stacked("experts.down_proj", d, width),
    ]
}

/// Returns the output projection, unless tied.
fn output(spec: &ModelSpec) -> Option<ParameterSpec> {
    let matrix = || matrix(OUTPUT, u64::from(spec.vocabulary), u64::from(spec.width), DEVIATION);
    (!spec.tied_embeddings).then(matrix)
}

fn matrix(name: impl Into<String>, rows: u64, columns: u64, deviation: f64) -> ParameterSpec {
    ParameterSpec {
        name: name.into(),
        shape: vec![rows, columns],
        cut: Cut::Replicated,
        initial: Initial::Normal { deviation },
    }
}

/// Returns a matrix [rows, columns] with the usual deviation.
pub(super) fn plain_matrix(name: impl Into<String>, rows: u64, columns: u64) -> ParameterSpec {
    matrix(name, rows, columns, DEVIATION)
}

pub(super) fn vector(name: impl Into<String>, len: u64, initial: Initial) -> ParameterSpec {
    ParameterSpec { name: name.into(), shape: vec![len], cut: Cut::Replicated, initial }
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::config;
    use super::*;

    #[test]
    fn names_and_shapes_are_those_of_hugging_face() {
        let gpt2 = ModelSpec::resolve(&config(ModelKind::Gpt2, 1, 8, 2, 16), 10).unwrap().parameters();
        let shape = |name: &str| gpt2.iter().find(|p| p.name == name).map(|p| p.shape.clone());
        assert_eq!(shape("transformer.h.0.attn.c_attn.weight"), Some(vec![8, 24]));
        assert_eq!(shape("transformer.h.0.mlp.c_proj.weight"), Some(vec![32, 8]));
        assert_eq!(shape("lm_head.weight"), None);

        let mut config = config(ModelKind::Llama, 1, 8, 4, 16);
        config.kv_heads = Some(2);
        let llama = ModelSpec::resolve(&config, 10).unwrap().parameters();
        let shape = |name: &str| llama.iter().find(|p| p.name == name).map(|p| p.shape.clone());
        assert_eq!(shape("model.layers.0.self_attn.k_proj.weight"), Some(vec![4, 8]));
        assert_eq!(shape("lm_head.weight"), Some(vec![10, 8]));
    }

    #[test]
    fn parts_hold_what_their_blocks_have_and_borrow_a_tied_embedding() {
        for (kind, tied) in [(ModelKind::Gpt2, true), (ModelKind::Gpt2, false), (ModelKind::Llama, true)] {
            let mut config = config(kind, 3, 8, 2, 16);
            config.tied_embeddings = Some(tied);
            let whole = ModelSpec::resolve(&config, 10).unwrap();
            let parts = [vec![0..2, 3..4], vec![2..3, 4..5]].map(|chunks| whole.part(chunks));
            let names = |spec: &ModelSpec| -> Vec<String> {
                let mut names: Vec<_> = spec.parameters().into_iter().map(|tensor| tensor.name).collect();
                names.sort_unstable();
                names
            };
            let mut both = parts.each_ref().map(names).concat();
            both.sort_unstable();
            assert_eq!(both, names(&whole));
            assert_eq!(parts[0].whole(), whole);
            assert_eq!(parts[0].borrowed(), None);
            let borrowed = parts[1].borrowed().map(|tensor| tensor.name);
            assert_eq!(borrowed.as_deref(), token_embedding(kind).filter(|_| tied));
            assert!(
                parts.iter().all(|part| part.parameters().is_sorted_by_key(|tensor| !tensor.is_matrix()))
            );
        }
    }

    #[test]
    fn matrices_come_before_vectors() {
        for kind in [ModelKind::Gpt2, ModelKind::Llama] {
            let spec = ModelSpec::resolve(&config(kind, 2, 8, 2, 16), 10).unwrap();
            let list = spec.parameters();
            assert!(list.is_sorted_by_key(|p| !p.is_matrix()));
            let before: u64 = list.iter().take_while(|p| p.is_matrix()).map(ParameterSpec::count).sum();
            assert_eq!(before, spec.decayed_count());
        }
    }
}
