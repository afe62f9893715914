//! Neighbouring blocks of the model: their forward pass, and their backward pass with or without recomputation.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use longhaul_common::config::{Precision, SparseBackwardConfig};
use longhaul_common::model::ModelSpec;
use tch::{Device, Kind, TchError, Tensor};

use crate::batch::MicroBatch;
use crate::evaluation::inputs;
use crate::models::{
    Columns, Deferred, Documents, Dropout, Left, Model, Objective, Parameters, Pass, Products, Segments,
    Subspace, TensorGroup,
};

/// Some blocks, and their tensors.
#[derive(Debug)]
pub(super) struct Chunk {
    model: Model,
    /// Indices of their tensors held here among the parameters.
    tensors: Vec<usize>,
    /// Leaves of autograd's graph: those tensors, and the borrowed one.
    leaves: Vec<Tensor>,
    blocks: Vec<Block>,
    /// Whether only the input of each block is kept, and its inner activations are recomputed for the backward pass (Chen et al. 2016, "Training deep nets
    /// with sublinear memory cost").
    recompute: bool,
    /// Queue of weight gradients of products for the second part of a backward pass; `None`: it has only one part.
    deferred: Option<Arc<Deferred>>,
}

/// Options of a chunk's computation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computing<'a> {
    pub precision: Precision,
    /// Whether activations are recomputed for the backward pass.
    pub recompute: bool,
    /// Sparsity of backward passes; `None`: dense.
    pub sparse: Option<&'a SparseBackwardConfig>,
    /// Whether a backward pass defers work to [`Chunk::weights`].
    pub in_two_parts: bool,
    /// Whether a backward pass leaves the columns of weight gradients for [`Chunk::columns`].
    pub collects: bool,
    /// Group with the other shares of the blocks.
    pub group: Option<&'a Arc<TensorGroup>>,
}

/// A block, and its leaves.
#[derive(Debug)]
struct Block {
    part: Part,
    leaves: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Embedding,
    /// Index among the model's layers here.
    Layer(usize),
    Head,
}

/// Targets of a chunk's loss: the tokens [B, T + 1], or images and classes `[B, C·H·W + 2]`, and the share of their mean loss in that of the batch.
#[derive(Debug)]
pub(super) struct Targets {
    pub tokens: Tensor,
    pub share: f64,
    /// Weight of each sequence's loss [B]; `None`: equal.
    pub weights: Option<Tensor>,
    /// Targets of rows [B, T], or classes of texts [B, 1], whose summed losses have that share; `None`: all tokens.
    labels: Option<Tensor>,
    objective: Objective,
    /// With weights, the cross entropies [B], once known.
    losses: RefCell<Option<Tensor>>,
}

impl Targets {
    pub fn new(tokens: Tensor, share: f64, weights: Option<Tensor>, objective: Objective) -> Self {
        Self { tokens, share, weights, objective, labels: None, losses: RefCell::new(None) }
    }

    /// Uses these labels.
    pub fn labelled(self, labels: Option<Tensor>) -> Self {
        Self { labels, ..self }
    }

    /// Returns their part of the batch's loss, given the residual stream [B, T, D] behind the last layer.
    pub fn loss(&self, model: &Model, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, TchError> {
        if let Some(labels) = &self.labels {
            return model.objective_of_labels(self.objective, x, labels, pass)?.f_mul_scalar(self.share);
        }
        let Some(weights) = &self.weights else {
            return model.objective_behind(self.objective, x, &self.tokens, pass)?.f_mul_scalar(self.share);
        };
        let losses = model.objectives_behind(self.objective, x, &self.tokens, pass)?; // [B]
        // Samples are compared by their cross entropy.
        let compared = match self.objective.is_plain() {
            true => losses.f_detach()?,
            false => tch::no_grad(|| model.losses_behind(x, &self.tokens))?,
        };
        self.losses.replace(Some(compared));
        losses.f_mul(weights)?.f_mean(Kind::Float)?.f_mul_scalar(self.share)
    }

    /// Returns the cross entropies [B] behind [`Self::loss`], with weights.
    pub fn losses(&self) -> Option<Tensor> {
        self.losses.borrow().as_ref().map(Tensor::shallow_clone)
    }
}

/// Data kept for a micro-batch between its forward and its backward pass.
#[derive(Debug)]
pub(super) struct SavedActivations {
    targets: Option<Targets>,
    data: PassData,
    activations: Activations,
}

/// Data of a micro-batch's passes, beside its tokens.
#[derive(Debug, Default)]
pub(super) struct PassData {
    pub documents: Option<Documents>,
    pub segments: Option<Segments>,
    pub dropout: Option<Dropout>,
    /// Fixed part [B, T, D] of a residual stream in a subspace.
    pub fixed: Option<Tensor>,
    /// Share of the micro-batch in the batch.
    pub share: f64,
}

impl PassData {
    /// Returns that of a pass without dropout, of a model with this subspace, if any.
    pub fn of(micro: &MicroBatch<'_>, subspace: Option<&Subspace>, device: Device) -> Result<Self, TchError> {
        let (documents, segments) = (micro.documents(device)?, micro.segments(device)?);
        let fixed = |subspace: &Subspace| {
            let tokens = inputs(micro, &micro.to_tensor(device)?)?; // [B, T]
            subspace.fixed(&tokens, 0, documents.as_ref())
        };
        let fixed = subspace.map(fixed).transpose()?;
        Ok(Self { documents, segments, fixed, ..Self::default() })
    }

    pub fn pass(&self) -> Pass<'_> {
        Pass {
            documents: self.documents.as_ref(),
            segments: self.segments.as_ref(),
            dropout: self.dropout.as_ref(),
            fixed: self.fixed.as_ref(),
            balance: self.share,
        }
    }
}

impl SavedActivations {
    /// Returns the losses [B] of its sequences, if requested and the last layer is here.
    pub fn losses(&self) -> Option<Tensor> {
        self.targets.as_ref().and_then(Targets::losses)
    }
}

#[derive(Debug)]
enum Activations {
    /// Autograd's graph, from the incoming residual stream, if it was not tokens, to the output.
    Graph { input: Option<Tensor>, output: Tensor },
    /// Input of each block.
    Inputs(Vec<Tensor>),
}

/// The gradients of a micro-batch.
#[derive(Debug)]
pub(super) struct Gradients {
    /// Of the chunk's tensors held here, in the order of [`Chunk::tensors`]; `None`: deferred, now or before.
    pub tensors: Vec<Option<Tensor>>,
    /// Of the borrowed tensor.
    pub borrowed: Option<Tensor>,
    /// Of the incoming residual stream, unless it was tokens.
    pub input: Option<Tensor>,
    /// Deferred work for [`Chunk::weights`].
    pub left: Option<Left>,
}

impl Chunk {
    pub fn new(
        spec: &ModelSpec,
        blocks: &Range<u32>,
        parameters: &Parameters,
        computing: Computing<'_>,
    ) -> Result<Self, TchError> {
        let tensors = spec.tensors_in(blocks);
        let views = parameters.views();
        let mut leaves: Vec<Tensor> = tensors.iter().map(|&at| views[at].shallow_clone()).collect();
        let borrows = blocks.contains(&spec.head());
        leaves.extend(parameters.borrowed().filter(|_| borrows).map(Tensor::shallow_clone));
        let block = |block: u32| {
            let own = spec.tensors_in(&(block..block + 1));
            let own = own.iter().filter_map(|at| tensors.iter().position(|other| other == at));
            // A tied embedding: the first of the tensors if held, the last of the leaves if borrowed.
            let tied = spec.ties_trained_embedding() && block == spec.head();
            let held = if blocks.contains(&0) { 0 } else { leaves.len() - 1 };
            Block {
                part: match block {
                    0 => Part::Embedding,
                    _ if block == spec.head() => Part::Head,
                    _ => Part::Layer((block - blocks.start.max(1)) as usize),
                },
                leaves: own.chain(tied.then_some(held)).collect(),
            }
        };
        let blocks_here = blocks.clone().map(block).collect();
        let Computing { precision, recompute, sparse, in_two_parts, collects, group } = computing;
        let deferred = match (in_two_parts, collects) {
            (_, true) => Some(Arc::new(Deferred::of_columns()?)),
            (true, false) => Some(Arc::new(Deferred::new()?)),
            (false, false) => None,
        };
        let products = Products::new(precision).sparse(spec, sparse).adapted(spec);
        let products = match (&deferred, sparse) {
            (Some(deferred), Some(sparse)) if collects => {
                let collected = spec.column_products(sparse).into_iter();
                products.collecting(Arc::clone(deferred), collected.map(|(product, _)| product.weight))
            }
            _ => products.deferred(deferred.clone()),
        };
        let products = products.among(group.cloned());
        let model = Model::new(spec, blocks, parameters, products)?;
        Ok(Self { model, tensors, leaves, blocks: blocks_here, recompute, deferred })
    }

    /// Returns the model, if all of it is here.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the indices of the tensors held here among the parameters.
    pub fn tensors(&self) -> &[usize] {
        &self.tensors
    }

    fn takes_tokens(&self) -> bool {
        self.blocks.first().is_some_and(|block| block.part == Part::Embedding)
    }

    /// Returns the residual stream [B, T, D] behind the blocks, outside autograd's graph, or the share of the loss [], for tokens [B, T] or the residual
    /// stream before them.
    pub fn forward(
        &self,
        input: &Tensor,
        targets: Option<Targets>,
        data: PassData,
    ) -> Result<(Tensor, SavedActivations), TchError> {
        let pass = data.pass();
        let through = |part, x: &Tensor| self.through(part, x, targets.as_ref(), pass);
        if self.recompute {
            let mut inputs = Vec::with_capacity(self.blocks.len());
            let output = tch::no_grad(|| {
                self.blocks.iter().try_fold(input.shallow_clone(), |x, block| {
                    let output = through(block.part, &x);
                    inputs.push(x);
                    output
                })
            })?;
            let activations = Activations::Inputs(inputs);
            return Ok((output, SavedActivations { targets, data, activations }));
        }
        let input = if self.takes_tokens() {
            input.shallow_clone()
        } else {
            input.f_detach()?.f_set_requires_grad(true)?
        };
        let parts = self.blocks.iter().map(|block| block.part);
        let output = parts.clone().try_fold(input.shallow_clone(), |x, part| through(part, &x))?;
        let handed_on = output.f_detach()?;
        let input = (!self.takes_tokens()).then_some(input);
        let activations = Activations::Graph { input, output };
        Ok((handed_on, SavedActivations { targets, data, activations }))
    }

    /// Returns the gradients, given that of the residual stream behind the blocks, or `None` if they end with the loss.
    pub fn backward(&self, kept: SavedActivations, gradient: Option<&Tensor>) -> Result<Gradients, TchError> {
        let SavedActivations { targets, data, activations } = kept;
        match activations {
            Activations::Graph { input, output } => {
                let mut leaves: Vec<Tensor> = self.leaves.iter().map(Tensor::shallow_clone).collect();
                leaves.extend(input.as_ref().map(Tensor::shallow_clone));
                let root = root_of(output, gradient)?;
                let mut gradients = backward_to(&root, &leaves)?;
                let input = input.and_then(|_| gradients.pop());
                self.sort(gradients.into_iter().map(known).collect(), input)
            }
            Activations::Inputs(inputs) => {
                self.backward_again(inputs, targets.as_ref(), data.pass(), gradient)
            }
        }
    }

    /// Goes block by block from the last one.
    fn backward_again(
        &self,
        mut inputs: Vec<Tensor>,
        targets: Option<&Targets>,
        pass: Pass<'_>,
        gradient: Option<&Tensor>,
    ) -> Result<Gradients, TchError> {
        let mut gradients: Vec<Option<Tensor>> = self.leaves.iter().map(|_| None).collect();
        let mut behind = gradient.map(Tensor::shallow_clone);
        for (at, block) in self.blocks.iter().enumerate().rev() {
            let Some(input) = inputs.pop() else { break };
            // Tokens have no gradient, and that of pixels is not needed.
            let is_first =
                self.takes_tokens() && self.blocks[..at].iter().all(|block| block.leaves.is_empty());
            let input = if is_first { input } else { input.f_detach()?.f_set_requires_grad(true)? };
            let output = self.through(block.part, &input, targets, pass)?;
            let root = root_of(output, behind.as_ref())?;
            let mut leaves: Vec<Tensor> =
                block.leaves.iter().map(|&at| self.leaves[at].shallow_clone()).collect();
            leaves.extend((!is_first).then_some(input));
            let mut own = backward_to(&root, &leaves)?;
            behind = if is_first { None } else { own.pop() };
            for (&at, gradient) in block.leaves.iter().zip(own) {
                let Some(gradient) = known(gradient) else { continue };
                let sum = match gradients[at].take() {
                    Some(other) => other.f_add(&gradient)?,
                    None => gradient,
                };
                gradients[at] = Some(sum);
            }
            if is_first {
                break;
            }
        }
        self.sort(gradients, behind)
    }

    /// Returns the gradients of deferred weights.
    pub fn weights(&self, left: &Left) -> Result<Gradients, TchError> {
        self.sort(left.gradients(&self.leaves)?, None)
    }

    /// Returns the columns of deferred weight gradients, by the weights' indices among the parameters.
    pub fn columns(&self, left: &Left) -> Result<Vec<(usize, Columns)>, TchError> {
        let found = left.columns(&self.leaves[..self.tensors.len()])?.into_iter();
        Ok(self.tensors.iter().zip(found).filter_map(|(&at, columns)| Some((at, columns?))).collect())
    }

    /// Assigns the gradients of the leaves to their roles.
    fn sort(&self, mut tensors: Vec<Option<Tensor>>, input: Option<Tensor>) -> Result<Gradients, TchError> {
        let borrowed = (tensors.len() > self.tensors.len()).then(|| tensors.pop()).flatten().flatten();
        let left = self.deferred.as_ref().map(|deferred| deferred.take()).transpose()?;
        Ok(Gradients { tensors, borrowed, input, left })
    }

    fn through(
        &self,
        part: Part,
        x: &Tensor,
        targets: Option<&Targets>,
        pass: Pass<'_>,
    ) -> Result<Tensor, TchError> {
        match (part, targets) {
            (Part::Embedding, _) => self.model.embed(x, pass),
            (Part::Layer(at), _) => self.model.layer(at, x, pass),
            (Part::Head, Some(targets)) => targets.loss(&self.model, &self.model.before_head(x, pass)?, pass),
            (Part::Head, None) => self.model.before_head(x, pass),
        }
    }
}

/// Returns the gradients of these leaves; frozen blocks have none.
fn backward_to(root: &Tensor, leaves: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
    if leaves.is_empty() { Ok(Vec::new()) } else { Tensor::f_run_backward(&[root], leaves, false, false) }
}

/// Returns a computed gradient; autograd returns an undefined tensor for a deferred one.
fn known(gradient: Tensor) -> Option<Tensor> {
    gradient.defined().then_some(gradient)
}

/// Returns the root for autograd: a loss; or a number whose gradient in `output` is `gradient`.
fn root_of(output: Tensor, gradient: Option<&Tensor>) -> Result<Tensor, TchError> {
    match gradient {
        Some(gradient) => output.f_mul(gradient)?.f_sum(Kind::Float),
        None => Ok(output),
    }
}
