//! GPT-2 (Radford et al. 2019, "Language models are unsupervised multitask learners").

use std::ops::Range;

use longhaul_common::model::{GPT2_NORM_EPSILON, ModelSpec};
use tch::{Kind, TchError, Tensor};

use super::Pass;
use super::attention::Attending;
use super::cache::{Cache, Past};
use super::dropout::Site;
use super::parameters::Parameters;
use super::precision::{Matrix, Products};
use super::subspace::Subspace;

/// Learnt positions, norms before attention and feed-forward part, GELU by its tanh approximation. Some neighbouring blocks of it, or all.
#[derive(Debug)]
pub struct Gpt2 {
    embedding: Option<Embedding>,
    blocks: Vec<Block>,
    head: Option<Head>,
    /// Of the residual stream; `None`: it is whole.
    subspace: Option<Subspace>,
    products: Products,
}

#[derive(Debug)]
struct Embedding {
    tokens: Tensor,    // [V, D]; [V, k] in a subspace
    positions: Tensor, // [C, D]; [C, k] in a subspace
}

#[derive(Debug)]
struct Head {
    norm: Norm,
    output: Matrix, // [V, D]; [V, k] if tied in a subspace
    /// Whether it is the token embedding.
    is_tied: bool,
}

#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    attention_in: Conv1d,  // D → 3·H·E
    attention_out: Conv1d, // H·E → D; → k in a subspace
    feed_forward_norm: Norm,
    feed_forward_in: Conv1d,  // D → F
    feed_forward_out: Conv1d, // F → D; → k in a subspace
    heads: i64,               // H, divided among a tensor group, like F
    head_width: i64,          // E
    attending: Attending,
    /// Out of the bottleneck before it, and into the one behind it.
    decoder: Option<Matrix>, // R → D
    encoder: Option<Matrix>, // D → R
    subspace: Option<Subspace>,
    products: Products,
}

#[derive(Debug)]
struct Conv1d {
    weight: Matrix, // [in, out]
    bias: Tensor,   // [out]
}

#[derive(Debug)]
struct Norm {
    weight: Tensor, // [D]
    bias: Tensor,   // [D]
}

impl Gpt2 {
    pub(super) fn new(
        spec: &ModelSpec,
        chunk: &Range<u32>,
        parameters: &Parameters,
        products: Products,
    ) -> Self {
        let subspace = parameters.subspace().map(Subspace::shallow_clone);
        Self {
            embedding: chunk.contains(&0).then(|| Embedding {
                tokens: parameters.view("transformer.wte.weight"),
                positions: parameters.view("transformer.wpe.weight"),
            }),
            blocks: spec
                .layers_in(chunk)
                .map(|layer| Block::new(spec, layer, parameters, (&products, subspace.as_ref())))
                .collect(),
            head: chunk.contains(&spec.head()).then(|| Head {
                norm: Norm::new(parameters, "transformer.ln_f"),
                output: products.matrix(parameters, spec.output_projection()),
                is_tied: spec.tied_embeddings,
            }),
            subspace,
            products,
        }
    }

    /// Returns the residual stream behind the last of these blocks, for their input: tokens [B, T] after those in the cache, or the residual stream of the block
    /// before; [B, T, D] with the head.
    pub(super) fn hidden(
        &self,
        input: &Tensor,
        cache: Option<&Cache>,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let fixed = match (pass.fixed, &self.subspace) {
            (None, Some(subspace)) if self.embedding.is_some() => {
                let start = cache.map_or(0, Cache::len) as i64;
                Some(subspace.fixed(input, start, pass.documents)?) // [B, T, D]
            }
            _ => None,
        };
        let pass = Pass { fixed: fixed.as_ref().or(pass.fixed), ..pass };
        let mut x = match self.embed(input, cache, pass) {
            Some(x) => x?, // [B, T, D]
            None => input.shallow_clone(),
        };
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, cache.map(|cache| cache.layer(layer)), pass)?; // [B, T, D]
        }
        if self.head.is_some() { self.composed(&x, pass) } else { Ok(x) }
    }

    /// Returns the residual stream [B, T, D], for that between blocks.
    pub(super) fn composed(&self, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        composed(self.subspace.as_ref(), x, pass)
    }

    /// Returns the residual stream [B, T, D] before the first layer, for tokens [B, T]; `None`: the embedding is elsewhere.
    pub(super) fn embed(
        &self,
        tokens: &Tensor,
        cache: Option<&Cache>,
        pass: Pass<'_>,
    ) -> Option<Result<Tensor, TchError>> {
        Some(self.embedding.as_ref()?.forward(tokens, cache, pass))
    }

    /// Returns the residual stream [B, T, D] behind one of these layers; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        Some(self.blocks.get(at)?.forward(x, None, pass))
    }

    /// Returns logits [B, T, V] for the output of [`Self::hidden`]; `None`: the head is elsewhere.
    pub(super) fn logits(&self, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        let Head { norm, output, is_tied } = self.head.as_ref()?;
        let products = self.products.within(pass.dropout);
        let project = |x: Tensor| match self.subspace.as_ref().filter(|_| *is_tied) {
            None => products.linear(&x, output),
            Some(subspace) => {
                let own = products.linear(&subspace.along(&x)?, output)?;
                products.cast(&x)?.f_linear::<&Tensor>(&products.cast(subspace.tokens())?, None)?.f_add(&own)
            }
        };
        Some(norm.forward(x).and_then(project)) // [B, T, V]
    }
}

impl Embedding {
    fn forward(&self, tokens: &Tensor, cache: Option<&Cache>, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let (start, length) = (cache.map_or(0, Cache::len) as i64, tokens.size()[1]);
        let positions = match pass.documents {
            Some(documents) => {
                Tensor::f_embedding(&self.positions, documents.positions(), -1, false, false)? // [B, T, D]
            }
            None => self.positions.f_narrow(0, start, length)?, // [T, D]
        };
        let embedded = Tensor::f_embedding(&self.tokens, tokens, -1, false, false)?;
        // Frozen embeddings may be narrower.
        let embedded = embedded.f_to_kind(Kind::Float)?.f_add(&positions.f_to_kind(Kind::Float)?)?; // [B, T, D]
        pass.dropped(embedded, Site::Embedding)
    }
}

impl Block {
    fn new(
        spec: &ModelSpec,
        layer: u32,
        parameters: &Parameters,
        (products, subspace): (&Products, Option<&Subspace>),
    ) -> Self {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let half = |part: &str| products.matrix(parameters, &name(&format!("bottleneck.{part}.weight")));
        let is_behind = |layer: u32| spec.bottleneck_behind(layer).is_some();
        Self {
            attention_norm: Norm::new(parameters, &name("ln_1")),
            attention_in: Conv1d::new(parameters, &name("attn.c_attn"), products),
            attention_out: Conv1d::new(parameters, &name("attn.c_proj"), products),
            feed_forward_norm: Norm::new(parameters, &name("ln_2")),
            feed_forward_in: Conv1d::new(parameters, &name("mlp.c_fc"), products),
            feed_forward_out: Conv1d::new(parameters, &name("mlp.c_proj"), products),
            heads: i64::from(spec.heads / spec.shard.ways()),
            head_width: i64::from(spec.head_width()),
            attending: Attending {
                scale: f64::from(spec.head_width()).sqrt().recip(),
                window: None,
                cap: None,
                layer,
                first_head: spec.shard.first_of(spec.heads).into(),
            },
            decoder: layer.checked_sub(1).is_some_and(is_behind).then(|| half("decoder")),
            encoder: is_behind(layer).then(|| half("encoder")),
            subspace: subspace.map(Subspace::shallow_clone),
            products: products.clone(),
        }
    }

    fn forward(&self, x: &Tensor, past: Option<Past<'_>>, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let (products, layer) = (self.products.within(pass.dropout), self.attending.layer);
        let normed = |norm: &Norm, x: &Tensor| norm.forward(&composed(self.subspace.as_ref(), x, pass)?);
        let x = through(self.decoder.as_ref(), x, &products)?; // [B, T, D]; [B, T, k] in a subspace
        let added = self.attention(&normed(&self.attention_norm, &x)?, past, pass, &products)?;
        let x = x.f_add(&pass.dropped(added, Site::Attention(layer))?)?;
        let added = self.feed_forward(&normed(&self.feed_forward_norm, &x)?, &products)?;
        let x = x.f_add(&pass.dropped(added, Site::FeedForward(layer))?)?;
        through(self.encoder.as_ref(), &x, &products)
    }

    fn attention(
        &self,
        x: &Tensor,
        past: Option<Past<'_>>,
        pass: Pass<'_>,
        products: &Products,
    ) -> Result<Tensor, TchError> {
        let [batch, length, _] = x.size()[..] else {
            return Err(TchError::Shape(format!("a block needs three dimensions, not {x:?}")));
        };
        let qkv = self.attention_in.forward(&products.enter_columns(x)?, products)?; // [B, T, 3·H·E]
        let heads = |part: &Tensor| {
            part.f_view([batch, length, self.heads, self.head_width])?.f_transpose(1, 2) // [B, H, T, E]
        };
        let parts = qkv.f_chunk(3, -1)?; // 3 × [B, T, H·E]
        let parts = parts.iter().map(heads).collect::<Result<Vec<_>, TchError>>()?;
        let [q, k, v] = &*parts else {
            return Err(TchError::Shape(format!("queries, keys and values must be three, not {qkv:?}")));
        };
        let mixed = products.attention(q, k, v, past, pass, &self.attending)?; // [B, T, H·E]
        self.attention_out.forward_rows(&mixed, products) // [B, T, D]
    }

    fn feed_forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        let x = products.enter_columns(x)?; // [B, T, D]
        let inner = self.feed_forward_in.forward(&x, products)?.f_gelu("tanh")?; // [B, T, F]
        self.feed_forward_out.forward_rows(&inner, products) // [B, T, D]
    }
}

/// Returns the residual stream [B, T, D], for its values between blocks: those in a subspace, or itself.
fn composed(subspace: Option<&Subspace>, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
    let missing = || TchError::Shape("a stream in a subspace needs its tokens".to_owned());
    match subspace {
        Some(subspace) => subspace.composed(x, pass.fixed.ok_or_else(missing)?),
        None => Ok(x.shallow_clone()),
    }
}

/// Returns the residual stream behind one half of a bottleneck, in f32.
fn through(half: Option<&Matrix>, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
    half.map_or_else(|| Ok(x.shallow_clone()), |half| products.bare_conv1d(x, half)?.f_to_kind(Kind::Float))
}

impl Conv1d {
    fn new(parameters: &Parameters, name: &str, products: &Products) -> Self {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        Self { weight: products.matrix(parameters, &weight), bias: parameters.view(&bias) }
    }

    fn forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        products.conv1d(x, &self.weight, &self.bias) // [B, T, out]
    }

    fn forward_rows(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        products.row_conv1d(x, &self.weight, &self.bias) // [B, T, out]
    }
}

impl Norm {
    fn new(parameters: &Parameters, name: &str) -> Self {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        Self { weight: parameters.view(&weight), bias: parameters.view(&bias) }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), GPT2_NORM_EPSILON, false) // [B, T, D]
    }
}
