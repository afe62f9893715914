//! Llama (Touvron et al. 2023, "LLaMA: Open and efficient foundation language models"; grouped queries as in Llama 2).

use std::ops::Range;

use longhaul_common::model::{LLAMA_NORM_EPSILON, LLAMA_ROTARY_BASE, ModelSpec};
use tch::{TchError, Tensor};

use super::cache::{Cache, Past};
use super::parameters::Parameters;
use super::precision::{Matrix, Products};

/// Rotary positions (Su et al. 2021), RMSNorm (Zhang & Sennrich 2019), SwiGLU (Shazeer 2020), no biases. Some neighbouring blocks of it, or all.
#[derive(Debug)]
pub struct Llama {
    tokens: Option<Tensor>, // [V, D]
    blocks: Vec<Block>,
    head: Option<Head>,
    rotary: Rotary,
    products: Products,
}

#[derive(Debug)]
struct Head {
    norm: Norm,
    output: Matrix, // [V, D]
}

#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    query: Matrix, // [H·E, D]; the H heads, G key heads and F channels are divided among a tensor group
    key: Matrix,   // [G·E, D]
    value: Matrix, // [G·E, D]
    out: Matrix,   // [D, H·E]
    feed_forward_norm: Norm,
    gate: Matrix, // [F, D]
    up: Matrix,   // [F, D]
    down: Matrix, // [D, F]
    head_width: i64,
    products: Products,
}

/// The cosines and sines of all positions, each [C, E], the two halves of E alike.
#[derive(Debug)]
struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

#[derive(Debug)]
struct Norm {
    weight: Tensor, // [D]
}

impl Llama {
    pub(super) fn new(
        spec: &ModelSpec,
        chunk: &Range<u32>,
        parameters: &Parameters,
        products: Products,
    ) -> Result<Self, TchError> {
        Ok(Self {
            tokens: chunk.contains(&0).then(|| parameters.view("model.embed_tokens.weight")),
            blocks: spec
                .layers_in(chunk)
                .map(|layer| Block::new(parameters, layer, i64::from(spec.head_width()), &products))
                .collect(),
            head: chunk.contains(&spec.head()).then(|| Head {
                norm: Norm::new(parameters, "model.norm"),
                output: products.matrix(parameters, spec.output_projection()),
            }),
            rotary: Rotary::new(spec, parameters)?,
            products,
        })
    }

    /// Returns the residual stream [B, T, D] behind the last of these blocks, for their input: tokens [B, T] after those in the cache, or the residual stream
    /// [B, T, D] of the block before.
    pub(super) fn hidden(&self, input: &Tensor, cache: Option<&Cache>) -> Result<Tensor, TchError> {
        let rotary = self.rotary.positions(cache.map_or(0, Cache::len) as i64, input.size()[1])?;
        let mut x = match self.embed(input) {
            Some(x) => x?, // [B, T, D]
            None => input.shallow_clone(),
        };
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &rotary, cache.map(|cache| cache.layer(layer)))?; // [B, T, D]
        }
        Ok(x)
    }

    /// Returns the residual stream [B, T, D] before the first layer, for tokens [B, T]; `None`: the embedding is elsewhere.
    pub(super) fn embed(&self, tokens: &Tensor) -> Option<Result<Tensor, TchError>> {
        Some(Tensor::f_embedding(self.tokens.as_ref()?, tokens, -1, false, false))
    }

    /// Returns the residual stream [B, T, D] behind one of these layers; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor) -> Option<Result<Tensor, TchError>> {
        let block = self.blocks.get(at)?;
        let rotary = self.rotary.positions(0, x.size()[1]);
        Some(rotary.and_then(|rotary| block.forward(x, &rotary, None)))
    }

    /// Returns logits [B, T, V] for the output of [`Self::hidden`]; `None`: the head is elsewhere.
    pub(super) fn logits(&self, x: &Tensor) -> Option<Result<Tensor, TchError>> {
        let Head { norm, output } = self.head.as_ref()?;
        Some(norm.forward(x).and_then(|x| self.products.linear(&x, output))) // [B, T, V]
    }
}

impl Block {
    fn new(parameters: &Parameters, layer: u32, head_width: i64, products: &Products) -> Self {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let weight = |part: &str| products.matrix(parameters, &format!("{}.weight", name(part)));
        Self {
            attention_norm: Norm::new(parameters, &name("input_layernorm")),
            query: weight("self_attn.q_proj"),
            key: weight("self_attn.k_proj"),
            value: weight("self_attn.v_proj"),
            out: weight("self_attn.o_proj"),
            feed_forward_norm: Norm::new(parameters, &name("post_attention_layernorm")),
            gate: weight("mlp.gate_proj"),
            up: weight("mlp.up_proj"),
            down: weight("mlp.down_proj"),
            head_width,
            products: products.clone(),
        }
    }

    fn forward(&self, x: &Tensor, rotary: &Rotary, past: Option<Past<'_>>) -> Result<Tensor, TchError> {
        let x = x.f_add(&self.attention(&self.attention_norm.forward(x)?, rotary, past)?)?; // [B, T, D]
        x.f_add(&self.feed_forward(&self.feed_forward_norm.forward(&x)?)?) // [B, T, D]
    }

    fn attention(&self, x: &Tensor, rotary: &Rotary, past: Option<Past<'_>>) -> Result<Tensor, TchError> {
        let x = self.products.enter_columns(x)?; // [B, T, D]
        let q = rotary.turn(&self.heads(&x, &self.query)?)?; // [B, H, T, E]
        let k = rotary.turn(&self.heads(&x, &self.key)?)?; // [B, G, T, E]
        let v = self.heads(&x, &self.value)?; // [B, G, T, E]
        let mixed = self.products.attention(&q, &k, &v, past)?; // [B, T, H·E]
        self.products.row_linear(&mixed, &self.out) // [B, T, D]
    }

    fn heads(&self, x: &Tensor, weight: &Matrix) -> Result<Tensor, TchError> {
        let projected = self.products.linear(x, weight)?; // [B, T, heads·E]
        let (batch, length) = (x.size()[0], x.size()[1]);
        projected.f_view([batch, length, -1, self.head_width])?.f_transpose(1, 2) // [B, heads, T, E]
    }

    fn feed_forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let x = self.products.enter_columns(x)?; // [B, T, D]
        let gate = self.products.linear(&x, &self.gate)?.f_silu()?; // [B, T, F]
        let inner = gate.f_mul(&self.products.linear(&x, &self.up)?)?; // [B, T, F]
        self.products.row_linear(&inner, &self.down) // [B, T, D]
    }
}

impl Rotary {
    fn new(spec: &ModelSpec, parameters: &Parameters) -> Result<Self, TchError> {
        let width = i64::from(spec.head_width());
        let angle = |position: u32, channel: i64| {
            let exponent = (2 * (channel % (width / 2))) as f64 / width as f64;
            f64::from(position) * LLAMA_ROTARY_BASE.powf(-exponent)
        };
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = (0..spec.context)
                .flat_map(|position| (0..width).map(move |channel| function(angle(position, channel)) as f32))
                .collect();
            Tensor::f_from_slice(&values)?.f_view([-1, width])?.f_to_device(parameters.flat().device())
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Returns those of the `length` positions from `start` on.
    fn positions(&self, start: i64, length: i64) -> Result<Self, TchError> {
        Ok(Self { cos: self.cos.f_narrow(0, start, length)?, sin: self.sin.f_narrow(0, start, length)? })
    }

    /// Rotates channel i of each head against channel i + E/2 by the position's angle. x: [B, heads, T, E].
    fn turn(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let halves = x.f_chunk(2, -1)?; // 2 × [B, heads, T, E/2]
        let turned = Tensor::f_cat(&[halves[1].f_neg()?, halves[0].shallow_clone()], -1)?; // [B, heads, T, E]
        x.f_mul(&self.cos)?.f_add(&turned.f_mul(&self.sin)?) // [B, heads, T, E]
    }
}

impl Norm {
    fn new(parameters: &Parameters, name: &str) -> Self {
        Self { weight: parameters.view(&format!("{name}.weight")) }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_rms_norm(self.weight.size(), Some(&self.weight), LLAMA_NORM_EPSILON) // [B, T, D]
    }
}
