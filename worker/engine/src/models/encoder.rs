//! Encoders: `docs/encoders.md`.

use std::ops::Range;

use longhaul_common::config::{EncoderActivation, ModelKind};
use longhaul_common::model::{self, ModelSpec};
use tch::{Kind, TchError, Tensor};

use super::Pass;
use super::attention::Attending;
use super::dropout::Site;
use super::parameters::Parameters;
use super::precision::{Matrix, Products};
use super::segments::Segments;

/// Some neighbouring blocks of an encoder, or all.
#[derive(Debug)]
pub struct Encoder {
    embedding: Option<Embedding>,
    layers: Vec<Layer>,
    head: Option<Head>,
    products: Products,
}

#[derive(Debug)]
struct Embedding {
    tokens: Tensor,    // [V, E]
    positions: Tensor, // [C + first, E]
    types: Tensor,     // [types, E]
    norm: Norm,        // [E]
    project: Option<Affine>,
    first_position: i64,
}

#[derive(Debug)]
struct Layer {
    query: Affine, // D → D
    key: Affine,
    value: Affine,
    out: Affine,
    attention_norm: Norm, // [D]
    inner: Affine,        // D → F
    outer: Affine,        // F → D
    norm: Norm,           // [D]
    activation: EncoderActivation,
    heads: i64,
    attending: Attending,
}

#[derive(Debug)]
enum Head {
    Masked(MaskedHead),
    /// A product, tanh or GELU, and another product, of the first token.
    Classes {
        inner: Affine,
        activation: Activation,
        outer: Affine,
        /// Whether dropout precedes the first product as well.
        drops_first: bool,
    },
    /// A product, GELU, and another product, of all tokens.
    Replaced {
        inner: Affine,
        activation: EncoderActivation,
        outer: Affine,
    },
}

#[derive(Clone, Copy, Debug)]
enum Activation {
    Tanh,
    Gelu(EncoderActivation),
}

#[derive(Debug)]
struct MaskedHead {
    transform: Affine, // D → E
    norm: Norm,        // [E]
    activation: EncoderActivation,
    output: Affine, // E → V
}

#[derive(Debug)]
struct Affine {
    weight: Matrix, // [out, in]
    bias: Tensor,   // [out]
}

#[derive(Debug)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

impl Encoder {
    pub(super) fn new(
        spec: &ModelSpec,
        of: &model::Encoder,
        chunk: &Range<u32>,
        parameters: &Parameters,
        products: Products,
    ) -> Self {
        let base = of.names.base;
        let affine = |name: &str| Affine::new(parameters, name, &products);
        let norm = |name: &str| Norm::new(parameters, name, of.norm_epsilon);
        let embedding = || {
            let view = |part: &str| parameters.view(&format!("{base}.embeddings.{part}.weight"));
            Embedding {
                tokens: view("word_embeddings"),
                positions: view("position_embeddings"),
                types: view("token_type_embeddings"),
                norm: norm(&format!("{base}.embeddings.LayerNorm")),
                project: of.projects(spec.width).then(|| affine(&format!("{base}.embeddings_project"))),
                first_position: of.first_position.into(),
            }
        };
        let layer = |layer: u32| {
            let name = |part: &str| format!("{base}.encoder.layer.{layer}.{part}");
            Layer {
                query: affine(&name("attention.self.query")),
                key: affine(&name("attention.self.key")),
                value: affine(&name("attention.self.value")),
                out: affine(&name("attention.output.dense")),
                attention_norm: norm(&name("attention.output.LayerNorm")),
                inner: affine(&name("intermediate.dense")),
                outer: affine(&name("output.dense")),
                norm: norm(&name("output.LayerNorm")),
                activation: of.activation,
                heads: spec.heads.into(),
                attending: Attending {
                    scale: f64::from(spec.head_width()).sqrt().recip(),
                    window: None,
                    cap: None,
                    layer,
                    first_head: 0,
                },
            }
        };
        let masked = || MaskedHead {
            transform: affine(of.names.head),
            norm: norm(of.names.head_norm),
            activation: of.head_activation,
            output: Affine {
                weight: products.matrix(parameters, spec.output_projection()),
                bias: parameters.view(of.names.output_bias),
            },
        };
        let head = || match of.head {
            model::Head::Masked => Some(Head::Masked(masked())),
            model::Head::Classes(_) => {
                let [inner, outer] = of.class_names().map(|name| affine(&name));
                let activation = match spec.kind {
                    ModelKind::Electra => Activation::Gelu(EncoderActivation::Gelu),
                    _ => Activation::Tanh,
                };
                // BERT's first product is its pooler.
                let drops_first = spec.kind != ModelKind::Bert;
                Some(Head::Classes { inner, activation, outer, drops_first })
            }
            model::Head::Replaced => {
                let [inner, outer] = model::REPLACED.map(affine);
                Some(Head::Replaced { inner, activation: of.activation, outer })
            }
            model::Head::None => None,
        };
        Self {
            embedding: chunk.contains(&0).then(embedding),
            layers: spec.layers_in(chunk).map(layer).collect(),
            head: chunk.contains(&spec.head()).then(head).flatten(),
            products,
        }
    }

    /// Returns the residual stream [B, T, D] behind the last of these blocks, for their input: tokens [B, T], or the residual stream [B, T, D] of the block
    /// before.
    pub(super) fn hidden(&self, input: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let x = self.embed(input, pass).unwrap_or_else(|| Ok(input.shallow_clone()))?; // [B, T, D]
        let products = self.products.within(pass.dropout);
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &products, pass))
    }

    /// Returns the residual stream [B, T, D] before the first layer, for tokens [B, T]; `None`: the embedding is elsewhere.
    pub(super) fn embed(&self, tokens: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        Some(self.embedding.as_ref()?.forward(tokens, &self.products.within(pass.dropout), pass))
    }

    /// Returns the residual stream [B, T, D] behind one of these layers; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        Some(self.layers.get(at)?.forward(x, &self.products.within(pass.dropout), pass))
    }

    /// Returns logits for the output of [`Self::hidden`]: [B, T, V], [B, K] of classes, or [B, T, 1] of replaced tokens; `None`: the head is elsewhere.
    pub(super) fn logits(&self, x: &Tensor, pass: Pass<'_>) -> Option<Result<Tensor, TchError>> {
        Some(self.head.as_ref()?.forward(x, &self.products.within(pass.dropout), pass))
    }

    /// Whether its head tells the classes of sequences.
    pub(super) fn tells_classes(&self) -> bool {
        matches!(self.head, Some(Head::Classes { .. }))
    }
}

impl Embedding {
    fn forward(&self, tokens: &Tensor, products: &Products, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let positions = self.positions.f_narrow(0, self.first_position, tokens.size()[1])?; // [T, E]
        let embedded = Tensor::f_embedding(&self.tokens, tokens, -1, false, false)?; // [B, T, E]
        let types = pass.segments.and_then(Segments::types).filter(|_| self.types.size()[0] > 1);
        let types = match types {
            Some(types) => Tensor::f_embedding(&self.types, types, -1, false, false)?, // [B, T, E]
            None => self.types.f_select(0, 0)?,                                        // [E]
        };
        let sum = embedded.f_to_kind(Kind::Float)?.f_add(&types)?;
        let x = pass.dropped(self.norm.forward(&sum.f_add(&positions)?)?, Site::Embedding)?;
        match &self.project {
            Some(project) => project.of(&x, products)?.f_to_kind(Kind::Float), // [B, T, D]
            None => Ok(x),
        }
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, products: &Products, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let layer = self.attending.layer;
        let added = pass.dropped(self.attention(x, products, pass)?, Site::Attention(layer))?;
        let x = self.attention_norm.forward(&x.f_add(&added)?)?; // [B, T, D]
        let inner = activated(&self.inner.of(&x, products)?, self.activation)?; // [B, T, F]
        let added = pass.dropped(self.outer.of(&inner, products)?, Site::FeedForward(layer))?;
        self.norm.forward(&x.f_add(&added)?) // [B, T, D]
    }

    fn attention(&self, x: &Tensor, products: &Products, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let [batch, length, width] = x.size()[..] else {
            return Err(TchError::Shape(format!("a layer needs three dimensions, not {x:?}")));
        };
        let heads = |of: &Affine| {
            of.of(x, products)?.f_view([batch, length, self.heads, -1])?.f_transpose(1, 2) // [B, H, T, E]
        };
        let (q, k, v) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let dropout = pass.dropout.filter(|dropout| dropout.drops_attention());
        let seen = pass.segments.and_then(Segments::seen); // [B, 1, 1, T]
        let mixed = match dropout {
            Some(_) => self.attending.by_scores(&q, &k, &v, seen, dropout)?,
            None => Tensor::f_scaled_dot_product_attention(&q, &k, &v, seen, 0.0, false, None, false)?,
        }; // [B, H, T, E]
        self.out.of(&mixed.f_transpose(1, 2)?.f_reshape([batch, length, width])?, products) // [B, T, D]
    }
}

impl Head {
    fn forward(&self, x: &Tensor, products: &Products, pass: Pass<'_>) -> Result<Tensor, TchError> {
        match self {
            Self::Masked(head) => head.forward(x, products),
            Self::Classes { inner, activation, outer, drops_first } => {
                let first = x.f_select(1, 0)?; // [B, D]
                let first = if *drops_first { pass.dropped(first, Site::Classes(0))? } else { first };
                let inner = inner.of(&first, products)?; // [B, D]
                let inner = match activation {
                    Activation::Tanh => inner.f_tanh()?,
                    Activation::Gelu(activation) => activated(&inner, *activation)?,
                };
                outer.of(&pass.dropped(inner, Site::Classes(1))?, products) // [B, K]
            }
            Self::Replaced { inner, activation, outer } => {
                let inner = activated(&inner.of(x, products)?, *activation)?; // [B, T, D]
                outer.of(&inner, products) // [B, T, 1]
            }
        }
    }
}

impl MaskedHead {
    fn forward(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        let transformed = activated(&self.transform.of(x, products)?, self.activation)?; // [B, T, E]
        self.output.of(&self.norm.forward(&transformed)?, products) // [B, T, V]
    }
}

fn activated(x: &Tensor, activation: EncoderActivation) -> Result<Tensor, TchError> {
    x.f_gelu(match activation {
        EncoderActivation::Gelu => "none",
        EncoderActivation::GeluNew => "tanh",
    })
}

impl Affine {
    fn new(parameters: &Parameters, name: &str, products: &Products) -> Self {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        Self { weight: products.matrix(parameters, &weight), bias: parameters.view(&bias) }
    }

    /// Returns x·Wᵀ + b for x [.., in].
    fn of(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        products.affine(x, &self.weight, &self.bias)
    }
}

impl Norm {
    fn new(parameters: &Parameters, name: &str, epsilon: f64) -> Self {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        Self { weight: parameters.view(&weight), bias: parameters.view(&bias), epsilon }
    }

    /// Normalises the last dimension, in f32.
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let x = x.f_to_kind(Kind::Float)?;
        x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.epsilon, false)
    }
}
