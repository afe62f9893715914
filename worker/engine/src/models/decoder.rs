//! Causal decoders: `docs/decoder.md`.

use std::ops::Range;

use longhaul_common::model::{self, Activation, ModelSpec, QueryNorm};
use tch::{Kind, TchError, Tensor};

use super::Pass;
use super::attention::Attending;
use super::cache::{Cache, Past};
use super::documents::Documents;
use super::dropout::Site;
use super::experts::Experts;
use super::parameters::Parameters;
use super::precision::{Matrix, Products};
use super::rotary::{TurnTables, Turns};

/// Some neighbouring blocks of a decoder, or all.
#[derive(Debug)]
pub struct Decoder {
    tokens: Option<Tensor>, // [V, D]
    embedding_scale: f64,
    blocks: Vec<Block>,
    head: Option<Head>,
    tables: TurnTables,
    products: Products,
}

#[derive(Debug)]
struct Head {
    norm: Norm,
    output: Matrix, // [V, D]
    cap: Option<f64>,
}

#[derive(Debug)]
struct Block {
    /// Index in the whole model.
    layer: u32,
    attention_norms: Norms,
    query: Affine, // [H·E, D]; the H heads, G key heads and F channels are divided among a tensor group
    key: Affine,   // [G·E, D]
    value: Affine, // [G·E, D]
    query_norms: Option<QueryNorms>,
    out: Affine, // [D, H·E]
    feed_forward_norms: Norms,
    feed_forward: FeedForward,
    attending: Attending,
    head_width: i64,
    products: Products,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Box<Dense>),
    Experts(Experts),
}

#[derive(Debug)]
struct Dense {
    gate: Affine, // [F, D]
    up: Affine,   // [F, D]
    down: Affine, // [D, F]
    activation: Activation,
}

/// A matrix, and its bias if it has one.
#[derive(Debug)]
struct Affine {
    weight: Matrix,
    bias: Option<Tensor>,
}

/// Norms before and behind a half of a block.
#[derive(Debug)]
struct Norms {
    before: Option<Norm>,
    behind: Option<Norm>,
}

#[derive(Debug)]
struct QueryNorms {
    query: Norm,
    key: Norm,
    kind: QueryNorm,
}

#[derive(Debug)]
struct Norm {
    weight: Tensor, // [D], or [E] of heads
    /// Whether the factor is 1 + weight.
    is_unit: bool,
    epsilon: f64,
}

impl Decoder {
    pub(super) fn new(
        spec: &ModelSpec,
        of: &model::Decoder,
        chunk: &Range<u32>,
        parameters: &Parameters,
        products: Products,
    ) -> Result<Self, TchError> {
        let layers = spec.layers_in(chunk);
        Ok(Self {
            tokens: chunk.contains(&0).then(|| parameters.view("model.embed_tokens.weight")),
            embedding_scale: of.embedding_scale,
            tables: TurnTables::new(of, spec.context, layers.clone(), parameters.flat().device())?,
            blocks: layers.map(|layer| Block::new(spec, of, parameters, layer, &products)).collect(),
            head: chunk.contains(&spec.head()).then(|| Head {
                norm: Norm::new(of, parameters, "model.norm"),
                output: products.matrix(parameters, spec.output_projection()),
                cap: of.logit_cap,
            }),
            products,
        })
    }

    /// Returns the residual stream [B, T, D] behind the last of these blocks, for their input: tokens [B, T] after those in the cache, or the residual stream
    /// [B, T, D] of the block before.
    pub(super) fn hidden(
        &self,
        input: &Tensor,
        cache: Option<&Cache>,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let turns = self.turns(cache.map_or(0, Cache::len), input.size()[1], pass.documents)?;
        let mut x = match self.embed(input, pass) {
            Some(x) => x?, // [B, T, D]
            None => input.shallow_clone(),
        };
        for (at, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &turns, cache.map(|cache| cache.layer(at)), pass)?; // [B, T, D]
        }
        Ok(x)
    }

    fn turns(&self, start: usize, length: i64, documents: Option<&Documents>) -> Result<Turns<'_>, TchError> {
        match documents {
            Some(documents) => self.tables.within(documents),
            None => self.tables.positions(start as i64, length),
        }
    }

    /// Returns the residual stream [B, T, D] before the first layer, for tokens [B, T]; `None`: the embedding is elsewhere.
    pub(super) fn embed(&self, tokens: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        let embedded = Tensor::f_embedding(self.tokens.as_ref()?, tokens, -1, false, false);
        // A frozen embedding may be narrower.
        let embedded = embedded.and_then(|x| x.f_to_kind(Kind::Float));
        // A product by 1 would cost a pass.
        let embedded = match self.embedding_scale {
            1.0 => embedded,
            scale => embedded.and_then(|x| x.f_mul_scalar(scale)),
        };
        Some(embedded.and_then(|x| pass.dropped(x, Site::Embedding)))
    }

    /// Returns the residual stream [B, T, D] behind one of these layers; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        let block = self.blocks.get(at)?;
        let turns = self.turns(0, x.size()[1], pass.documents);
        Some(turns.and_then(|turns| block.forward(x, &turns, None, pass)))
    }

    /// Returns logits [B, T, V] for the output of [`Self::hidden`]; `None`: the head is elsewhere.
    pub(super) fn logits(&self, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        let Head { norm, output, cap } = self.head.as_ref()?;
        let products = self.products.within(pass.dropout);
        let logits = norm.forward(x).and_then(|x| products.linear(&x, output)); // [B, T, V]
        Some(match cap {
            Some(cap) => logits.and_then(|logits| logits.f_div_scalar(*cap)?.f_tanh()?.f_mul_scalar(*cap)),
            None => logits,
        })
    }
}

impl Block {
    fn new(
        spec: &ModelSpec,
        of: &model::Decoder,
        parameters: &Parameters,
        layer: u32,
        products: &Products,
    ) -> Self {
        let mixtures = (0..spec.layers).filter(|layer| of.experts_of(*layer).is_some()).count();
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let affine = |has_bias: bool, part: &str| Affine {
            weight: products.matrix(parameters, &format!("{}.weight", name(part))),
            bias: has_bias.then(|| parameters.view(&format!("{}.bias", name(part)))),
        };
        let norm = |is_there: bool, part: &str| is_there.then(|| Norm::new(of, parameters, &name(part)));
        let [before, behind] = [of.norms.are_before(), of.norms.are_behind()];
        let feed_forward_norm = if behind { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        Self {
            layer,
            attention_norms: Norms {
                before: norm(before, "input_layernorm"),
                behind: norm(behind, "post_attention_layernorm"),
            },
            query: affine(of.qkv_bias, "self_attn.q_proj"),
            key: affine(of.qkv_bias, "self_attn.k_proj"),
            value: affine(of.qkv_bias, "self_attn.v_proj"),
            query_norms: of.query_norm.map(|kind| QueryNorms {
                query: Norm::new(of, parameters, &name("self_attn.q_norm")),
                key: Norm::new(of, parameters, &name("self_attn.k_norm")),
                kind,
            }),
            out: affine(of.out_bias, "self_attn.o_proj"),
            feed_forward_norms: Norms {
                before: norm(before, feed_forward_norm),
                behind: norm(behind, "post_feedforward_layernorm"),
            },
            feed_forward: match of.experts_of(layer) {
                Some(experts) => {
                    FeedForward::Experts(Experts::new(experts, mixtures, parameters, layer, products))
                }
                None => FeedForward::Dense(Box::new(Dense {
                    gate: affine(of.mlp_bias, "mlp.gate_proj"),
                    up: affine(of.mlp_bias, "mlp.up_proj"),
                    down: affine(of.mlp_bias, "mlp.down_proj"),
                    activation: of.activation,
                })),
            },
            attending: Attending {
                scale: of.score_scalar.sqrt().recip(),
                window: of.window_of(layer).map(i64::from),
                cap: of.score_cap,
                layer,
                first_head: spec.shard.first_of(spec.heads).into(),
            },
            head_width: i64::from(of.head_width),
            products: products.clone(),
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        turns: &Turns,
        past: Option<Past<'_>>,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let products = self.products.within(pass.dropout);
        let attention = |x: &Tensor| {
            let added = self.attention(x, turns, past, pass, &products)?;
            pass.dropped(added, Site::Attention(self.layer))
        };
        let x = x.f_add(&self.attention_norms.around(x, attention)?)?; // [B, T, D]
        let feed_forward = |x: &Tensor| {
            let added = match &self.feed_forward {
                FeedForward::Dense(dense) => dense.forward(x, &products),
                FeedForward::Experts(experts) => experts.forward(x, pass.balance),
            };
            pass.dropped(added?, Site::FeedForward(self.layer))
        };
        x.f_add(&self.feed_forward_norms.around(&x, feed_forward)?) // [B, T, D]
    }

    fn attention(
        &self,
        x: &Tensor,
        turns: &Turns,
        past: Option<Past<'_>>,
        pass: Pass<'_>,
        products: &Products,
    ) -> Result<Tensor, TchError> {
        let x = products.enter_columns(x)?; // [B, T, D]
        let (q, k) = (self.query.of(products, &x)?, self.key.of(products, &x)?); // [B, T, H·E], [B, T, G·E]
        let (q, k) = match &self.query_norms {
            Some(QueryNorms { query, key, kind: QueryNorm::Width }) => {
                (self.heads(&query.forward(&q)?)?, self.heads(&key.forward(&k)?)?)
            }
            Some(QueryNorms { query, key, kind: QueryNorm::Head }) => (
                query.among(products)?.forward(&self.heads(&q)?)?,
                key.among(products)?.forward(&self.heads(&k)?)?,
            ),
            None => (self.heads(&q)?, self.heads(&k)?),
        }; // [B, H, T, E], [B, G, T, E]
        let (q, k) = (turns.turn(self.layer, &q)?, turns.turn(self.layer, &k)?);
        let v = self.heads(&self.value.of(products, &x)?)?; // [B, G, T, E]
        let mixed = products.attention(&q, &k, &v, past, pass, &self.attending)?; // [B, T, H·E]
        self.out.of_rows(products, &mixed) // [B, T, D]
    }

    /// [B, T, heads·E] → [B, heads, T, E]
    fn heads(&self, projected: &Tensor) -> Result<Tensor, TchError> {
        let (batch, length) = (projected.size()[0], projected.size()[1]);
        projected.f_view([batch, length, -1, self.head_width])?.f_transpose(1, 2)
    }
}

impl Dense {
    fn forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        let x = products.enter_columns(x)?; // [B, T, D]
        let gate = self.gate.of(products, &x)?; // [B, T, F]
        let gate = match self.activation {
            Activation::Silu => gate.f_silu()?,
            Activation::GeluTanh => gate.f_gelu("tanh")?,
        };
        let inner = gate.f_mul(&self.up.of(products, &x)?)?; // [B, T, F]
        self.down.of_rows(products, &inner) // [B, T, D]
    }
}

impl Affine {
    /// Returns x·Wᵀ + b for x [.., in], whose outputs are divided among a tensor group.
    fn of(&self, products: &Products, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.bias {
            Some(bias) => products.affine(x, &self.weight, bias),
            None => products.linear(x, &self.weight),
        }
    }

    /// The same with inputs that are divided.
    fn of_rows(&self, products: &Products, x: &Tensor) -> Result<Tensor, TchError> {
        let product = products.row_linear(x, &self.weight)?;
        self.bias.as_ref().map_or(Ok(product.shallow_clone()), |bias| product.f_add(bias))
    }
}

impl Norms {
    fn around(
        &self,
        x: &Tensor,
        half: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let added = match &self.before {
            Some(norm) => half(&norm.forward(x)?),
            None => half(x),
        }?;
        self.behind.as_ref().map_or(Ok(added.shallow_clone()), |norm| norm.forward(&added))
    }
}

impl Norm {
    fn new(of: &model::Decoder, parameters: &Parameters, name: &str) -> Self {
        let weight = parameters.view(&format!("{name}.weight"));
        Self { weight, is_unit: of.unit_norms, epsilon: of.norm_epsilon }
    }

    /// Returns the same with a gradient that is the sum over a tensor group, whose members have other heads.
    fn among(&self, products: &Products) -> Result<Self, TchError> {
        let weight = products.enter_columns(&self.weight)?;
        Ok(Self { weight, is_unit: self.is_unit, epsilon: self.epsilon })
    }

    /// Normalises the last dimension, in f32.
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let factor = if self.is_unit { self.weight.f_add_scalar(1.0)? } else { self.weight.shallow_clone() };
        x.f_to_kind(factor.kind())?.f_rms_norm(factor.size(), Some(&factor), self.epsilon)
    }
}
