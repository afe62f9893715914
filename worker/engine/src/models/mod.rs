//! The models, over one flat parameter vector.

mod adapter;
mod attention;
mod cache;
mod cnn;
mod decoder;
mod deferred;
mod documents;
mod dropout;
mod encoder;
mod experts;
mod frozen;
mod gpt2;
mod mlp;
mod objective;
mod parameters;
mod pixels;
mod precision;
mod rotary;
mod segments;
mod sparse;
mod subspace;
mod tensor_group;

use std::ops::Range;

pub use cache::Cache;
pub use cnn::Cnn;
pub use decoder::Decoder;
pub(crate) use deferred::{Columns, Deferred, Left};
pub use documents::Documents;
pub use dropout::Dropout;
pub(crate) use dropout::DropoutRates;
use dropout::Site;
pub use encoder::Encoder;
pub use frozen::FrozenWeights;
pub use gpt2::Gpt2;
use longhaul_common::config::{ModelKind, Precision};
use longhaul_common::model::ModelSpec;
pub use mlp::Mlp;
use objective::PLAIN;
pub(crate) use objective::{IGNORED, Objective};
pub use parameters::Parameters;
pub(crate) use parameters::{views, views_of};
pub(crate) use precision::Products;
pub use segments::Segments;
pub use sparse::{Layout, Selection, sparse_product};
pub(crate) use subspace::Subspace;
use tch::{Kind, Reduction, TchError, Tensor};
pub use tensor_group::{MEMBERS_MAX, TensorGroup};

/// Neighbouring blocks of a causal language model, or all of them; or a classifier of images.
///
/// A language model's sample is a sequence [T + 1]: the first T tokens are the input, the last T the targets. A classifier's is an image and its class
/// `[C·H·W + 2]` (see [`Batch`](crate::Batch)): pixels are the input, the class is the target; T is 1, without that dimension.
#[derive(Debug)]
pub enum Model {
    /// See [`Gpt2`].
    Gpt2(Gpt2),
    /// See [`Decoder`].
    Decoder(Decoder),
    /// See [`Encoder`].
    Encoder(Encoder),
    /// See [`Mlp`].
    Mlp(Mlp),
    /// See [`Cnn`].
    Cnn(Cnn),
}

/// A pass through the model, beside its input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass<'a> {
    /// Documents of the sequences; `None`: one each.
    pub documents: Option<&'a Documents>,
    /// Texts and padding of an encoder's sequences; `None`: full sequences of one text.
    pub segments: Option<&'a Segments>,
    /// Dropout; `None`: without.
    pub dropout: Option<&'a Dropout>,
    /// Fixed part [B, T, D] of a residual stream in a subspace; `None`: there is none, or it is that of the tokens.
    pub fixed: Option<&'a Tensor>,
    /// Share of the loss that balances experts, whose gradient the backward pass adds.
    pub balance: f64,
}

impl Pass<'_> {
    /// Returns x [B, ..] behind dropout at this site, if the pass has some.
    fn dropped(self, x: Tensor, site: Site) -> Result<Tensor, TchError> {
        self.dropout.map_or(Ok(x.shallow_clone()), |dropout| dropout.applied(&x, site))
    }
}

impl Model {
    /// Creates the whole model, whose weights are the views of `parameters`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn of_all(spec: &ModelSpec, parameters: &Parameters, precision: Precision) -> Result<Self, TchError> {
        Self::new(spec, &(0..spec.head() + 1), parameters, Products::new(precision).adapted(spec))
    }

    /// Creates the blocks of a chunk, whose weights are views of `parameters`, and which compute by `products`.
    ///
    /// # Errors
    /// For a share of the model, the tensor group does not fit; or libtorch fails.
    pub(crate) fn new(
        spec: &ModelSpec,
        chunk: &Range<u32>,
        parameters: &Parameters,
        products: Products,
    ) -> Result<Self, TchError> {
        if !products.are_of(spec.shard) {
            return Err(TchError::Shape("a share of a model computes with its tensor group only".to_owned()));
        }
        Ok(match (&spec.classifier, &spec.decoder, &spec.encoder) {
            (Some(classifier), ..) if spec.kind == ModelKind::Cnn => {
                Self::Cnn(Cnn::new(classifier, parameters, products))
            }
            (Some(classifier), ..) => Self::Mlp(Mlp::new(classifier, parameters, products)),
            (None, Some(of), _) => Self::Decoder(Decoder::new(spec, of, chunk, parameters, products)?),
            (None, None, Some(of)) => Self::Encoder(Encoder::new(spec, of, chunk, parameters, products)),
            (None, None, None) => Self::Gpt2(Gpt2::new(spec, chunk, parameters, products)),
        })
    }

    /// Returns logits [B, T, V], in the precision of the run, for tokens [B, T] (int64); or [B, K] for pixels [B, C·H·W] (uint8).
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub fn logits(&self, tokens: &Tensor) -> Result<Tensor, TchError> {
        self.project(&self.forward(tokens)?)
    }

    /// Returns logits [B, N, V] for rows [B, N, D] of the residual stream behind the last layer.
    ///
    /// # Errors
    /// The head is not among these blocks; or libtorch fails.
    pub fn logits_behind(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.project(x)
    }

    /// Returns logits [B, V] of the token after `tokens` [B, T], which follow those in the cache and are added to it. Outside autograd.
    ///
    /// # Errors
    /// With those in the cache, the tokens exceed the context; the cache is then unchanged. Or libtorch fails.
    pub fn next_logits(&self, tokens: &Tensor, cache: &mut Cache) -> Result<Tensor, TchError> {
        let last = tch::no_grad(|| {
            let x = self.hidden(tokens, Some(cache), Pass::default())?; // [B, T, D]
            self.project(&x.f_narrow(1, -1, 1)?) // [B, 1, V]
        })?;
        cache.advance(tokens.size()[1]);
        last.f_select(1, 0) // [B, V]
    }

    /// Returns the cross entropy of each next token, in nats, [B, T], for tokens [B, T + 1]; of each image, [B, 1].
    ///
    /// # Errors
    /// libtorch fails.
    pub fn token_losses(&self, samples: &Tensor) -> Result<Tensor, TchError> {
        self.cross_entropy(samples, Reduction::None)?.f_view([samples.size()[0], -1])
    }

    /// Returns the mean cross entropy in nats [], and for images the number of classes with the largest logit [].
    ///
    /// # Errors
    /// libtorch fails.
    pub fn judge(&self, samples: &Tensor) -> Result<(Tensor, Option<Tensor>), TchError> {
        if !self.is_of_images() {
            return Ok((self.mean_loss(samples)?, None));
        }
        let logits = self.logits(&self.inputs(samples)?)?; // [B, K]
        let classes = pixels::classes_of(samples)?; // [B]
        let hits = logits.f_argmax(-1, false)?.f_eq_tensor(&classes)?.f_sum(Kind::Int64)?;
        Ok((PLAIN.loss(&logits, &classes, Reduction::Mean)?, Some(hits)))
    }

    /// Returns the mean cross entropy of the next token, in nats, for tokens [B, T + 1].
    ///
    /// # Errors
    /// libtorch fails.
    pub fn mean_loss(&self, samples: &Tensor) -> Result<Tensor, TchError> {
        self.cross_entropy(samples, Reduction::Mean)
    }

    /// Returns the residual stream behind the last of these blocks, for their input: tokens [B, T] (int64), or the residual stream of the block before. It is
    /// [B, T, D] behind the last layer with the head; between blocks `D` may be less ([`ModelSpec::stream_width`]).
    ///
    /// # Errors
    /// libtorch fails.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TchError> {
        self.forward_in(input, Pass::default())
    }

    /// The same in a pass.
    pub(crate) fn forward_in(&self, input: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        self.hidden(input, None, pass)
    }

    /// Returns the sum of the cross entropies, in nats, of the labels [B, T] (of classes [B, 1]), given the residual stream [B, T, D] behind the last layer,
    /// and for classes the number of those with the largest logit. A label of [`IGNORED`] counts nothing.
    pub(crate) fn judge_labels(
        &self,
        x: &Tensor,
        labels: &Tensor,
    ) -> Result<(Tensor, Option<Tensor>), TchError> {
        if !self.is_of_texts() {
            return Ok((self.loss_of_labels(x, labels)?, None));
        }
        let (logits, classes) = (self.project(x)?, labels.f_reshape([-1])?); // [B, K], [B]
        let hits = logits.f_argmax(-1, false)?.f_eq_tensor(&classes)?.f_sum(Kind::Int64)?;
        Ok((PLAIN.loss(&logits, &classes, Reduction::Sum)?, Some(hits)))
    }

    /// Returns the sum of the cross entropies, in nats, of the labels [B, T], given the residual stream [B, T, D] behind the last layer. A label of
    /// [`IGNORED`] counts nothing.
    pub(crate) fn loss_of_labels(&self, x: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
        self.objective_of_labels(PLAIN, x, labels, Pass::default())
    }

    /// Returns the sum of their training losses.
    pub(crate) fn objective_of_labels(
        &self,
        objective: Objective,
        x: &Tensor,
        labels: &Tensor,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let labels = labels.f_reshape([-1])?; // [B·T]
        // Dropout is of whole sequences, and so are classes.
        if !matches!(self, Self::Encoder(_))
            || self.is_of_texts()
            || pass.dropout.is_some_and(Dropout::drops_inputs)
        {
            return objective.loss(&self.project_in(x, pass)?, &labels, Reduction::Sum);
        }
        // A seventh of the tokens have a label.
        let places = labels.f_ne(IGNORED)?.f_nonzero()?.f_view([-1])?; // [N]
        let (x, labels) =
            (x.f_flatten(0, 1)?.f_index_select(0, &places)?, labels.f_index_select(0, &places)?);
        objective.loss(&self.project(&x.f_unsqueeze(0)?)?, &labels, Reduction::Sum)
    }

    /// Returns the mean for each sequence: `[B]`; zero without labels.
    pub(crate) fn losses_of_labels(&self, x: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
        let losses = PLAIN.loss(&self.project(x)?, &labels.f_reshape([-1])?, Reduction::None)?; // [B·T]
        let counts = labels.f_ne(IGNORED)?.f_sum_dim_intlist([1].as_slice(), false, Kind::Float)?; // [B]
        let sums = losses.f_view([labels.size()[0], -1])?;
        sums.f_sum_dim_intlist([1].as_slice(), false, Kind::Float)?.f_div(&counts.f_clamp_min(1.0)?)
    }

    /// Returns the mean cross entropy, in nats, of the tokens [B, T + 1] except the first of each sequence, given the residual stream [B, T, D] behind the
    /// last layer.
    ///
    /// # Errors
    /// The head is not among these blocks; or libtorch fails.
    pub fn loss_behind(&self, x: &Tensor, tokens: &Tensor) -> Result<Tensor, TchError> {
        self.loss_of(PLAIN, x, tokens, Reduction::Mean, Pass::default())
    }

    /// Returns the mean training loss behind the last layer, as [`Self::loss_behind`].
    ///
    /// # Errors
    /// The head is not among these blocks; or libtorch fails.
    pub(crate) fn objective_behind(
        &self,
        objective: Objective,
        x: &Tensor,
        tokens: &Tensor,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        self.loss_of(objective, x, tokens, Reduction::Mean, pass)
    }

    /// Returns the training loss of each sequence: `[B]`.
    ///
    /// # Errors
    /// The head is not among these blocks; or libtorch fails.
    pub(crate) fn objectives_behind(
        &self,
        objective: Objective,
        x: &Tensor,
        tokens: &Tensor,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let losses = self.loss_of(objective, x, tokens, Reduction::None, pass)?; // [B·T]
        losses.f_view([tokens.size()[0], -1])?.f_mean_dim([1].as_slice(), false, Kind::Float)
    }

    /// Returns the same for each sequence: `[B]`.
    ///
    /// # Errors
    /// The head is not among these blocks; or libtorch fails.
    pub fn losses_behind(&self, x: &Tensor, tokens: &Tensor) -> Result<Tensor, TchError> {
        self.objectives_behind(PLAIN, x, tokens, Pass::default())
    }

    /// Returns the residual stream [B, T, D] before the first layer, for tokens [B, T] (int64).
    ///
    /// # Errors
    /// The embedding is not among these blocks; or libtorch fails.
    pub fn embed(&self, tokens: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let x = match self {
            Self::Gpt2(model) => model.embed(tokens, None, pass),
            Self::Decoder(model) => model.embed(tokens, pass),
            Self::Encoder(model) => model.embed(tokens, pass),
            Self::Mlp(model) => Some(model.embed(tokens)),
            Self::Cnn(model) => Some(model.embed(tokens)),
        };
        x.unwrap_or_else(|| Err(TchError::Shape("the embedding is not among these blocks".to_owned())))
    }

    /// Returns the residual stream [B, T, D] behind a layer, by its index among those here, for its input.
    ///
    /// # Errors
    /// No such layer; or libtorch fails.
    pub fn layer(&self, at: usize, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let x = match self {
            Self::Gpt2(model) => model.layer(at, x, pass),
            Self::Decoder(model) => model.layer(at, x, pass),
            Self::Encoder(model) => model.layer(at, x, pass),
            Self::Mlp(model) => model.layer(at, x),
            Self::Cnn(model) => model.layer(at, x),
        };
        x.unwrap_or_else(|| Err(TchError::Shape(format!("fewer than {} layers are here", at + 1))))
    }

    /// Returns the input [B, T, D] of the head, for the residual stream behind the last layer.
    ///
    /// # Errors
    /// libtorch fails.
    pub(crate) fn before_head(&self, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        match self {
            Self::Gpt2(model) => model.composed(x, pass),
            Self::Decoder(_) | Self::Encoder(_) | Self::Mlp(_) | Self::Cnn(_) => Ok(x.shallow_clone()),
        }
    }

    fn hidden(&self, input: &Tensor, cache: Option<&Cache>, pass: Pass<'_>) -> Result<Tensor, TchError> {
        match self {
            Self::Gpt2(model) => model.hidden(input, cache, pass),
            Self::Decoder(model) => model.hidden(input, cache, pass),
            Self::Encoder(model) => model.hidden(input, pass),
            Self::Mlp(model) => model.hidden(input),
            Self::Cnn(model) => model.hidden(input),
        }
    }

    fn project(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.project_in(x, Pass::default())
    }

    fn project_in(&self, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        let logits = match self {
            Self::Gpt2(model) => model.logits(x, pass),
            Self::Decoder(model) => model.logits(x, pass),
            Self::Encoder(model) => model.logits(x, pass),
            Self::Mlp(model) => Some(model.logits(x)),
            Self::Cnn(model) => Some(model.logits(x)),
        };
        logits.unwrap_or_else(|| Err(TchError::Shape("the head is not among these blocks".to_owned())))
    }

    /// Whether it tells the classes of texts.
    fn is_of_texts(&self) -> bool {
        matches!(self, Self::Encoder(encoder) if encoder.tells_classes())
    }

    fn is_of_images(&self) -> bool {
        matches!(self, Self::Mlp(_) | Self::Cnn(_))
    }

    /// Returns the input of samples: tokens [B, T], or pixels [B, C·H·W].
    fn inputs(&self, samples: &Tensor) -> Result<Tensor, TchError> {
        match self.is_of_images() {
            true => pixels::pixels_of(samples),
            false => samples.f_narrow(1, 0, samples.size()[1] - 1),
        }
    }

    /// Returns the targets of samples: tokens [B·T], or classes [B], int64.
    fn targets(&self, samples: &Tensor) -> Result<Tensor, TchError> {
        match self.is_of_images() {
            true => pixels::classes_of(samples),
            false => samples.f_narrow(1, 1, samples.size()[1] - 1)?.f_reshape([-1]),
        }
    }

    fn cross_entropy(&self, samples: &Tensor, reduction: Reduction) -> Result<Tensor, TchError> {
        let x = self.forward(&self.inputs(samples)?)?; // [B, T, D]
        self.loss_of(PLAIN, &x, samples, reduction, Pass::default())
    }

    fn loss_of(
        &self,
        objective: Objective,
        x: &Tensor,
        samples: &Tensor,
        reduction: Reduction,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        let logits = self.project_in(x, pass)?; // [B, T, V]
        objective.loss(&logits, &self.targets(samples)?, reduction)
    }
}
