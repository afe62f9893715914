//! Products in the precision of the run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longhaul_common::config::{Precision, SparseBackwardConfig};
use longhaul_common::model::{ModelSpec, Shard, adapter_names};
use tch::{Kind, TchError, Tensor};

use super::deferred::Deferred;
use super::parameters::Parameters;
use super::sparse::{Layout, Selection, selections, sparse_product};
use super::tensor_group::TensorGroup;

/// The number format of matrix products and attention. Norms, residual stream and loss stay in f32, and so do the optimiser's weights: they are cast anew in
/// each pass (Micikevicius et al. 2018, "Mixed precision training").
#[derive(Clone, Debug)]
pub(crate) struct Products {
    kind: Kind,
    /// Selections of the products' backward passes, by name of the weight; absent: dense.
    selections: Arc<HashMap<String, Selection>>,
    /// Queue of deferred weight gradients; `None`: not deferred.
    deferred: Option<Arc<Deferred>>,
    /// Names of the only weights whose products leave something: columns. `None`: all products defer everything.
    collected: Option<Arc<HashSet<String>>>,
    /// Group with the other shares of the weights; `None`: all of them are here.
    group: Option<Arc<TensorGroup>>,
    /// Scales of adapters, by name of the adapted weight.
    scales: Arc<HashMap<String, f64>>,
}

/// The weight of a product, and the selection of its backward pass; `None`: dense.
#[derive(Debug)]
pub(super) struct Matrix {
    weight: Tensor,
    selection: Option<Selection>,
    /// Queue of its deferred gradient.
    deferred: Option<Arc<Deferred>>,
    adapter: Option<Adapter>,
}

/// A low-rank matrix beside a frozen one: scale·B·A (Hu et al. 2021, "LoRA", arXiv 2106.09685).
#[derive(Debug)]
struct Adapter {
    down: Tensor, // A: [R, in]
    up: Tensor,   // B: [out, R]
    scale: f64,
}

impl Adapter {
    /// Returns scale·(x·Aᵀ)·Bᵀ for x [.., in].
    fn product(&self, x: &Tensor, products: &Products) -> Result<Tensor, TchError> {
        let inner = x.f_linear::<Tensor>(&products.cast(&self.down)?, None)?; // [.., R]
        inner.f_linear::<Tensor>(&products.cast(&self.up)?, None)?.f_mul_scalar(self.scale) // [.., out]
    }
}

impl Products {
    /// Dense, not deferred, and without a tensor group.
    pub(crate) fn new(precision: Precision) -> Self {
        Self {
            kind: kind_of(precision),
            selections: Arc::default(),
            deferred: None,
            collected: None,
            group: None,
            scales: Arc::default(),
        }
    }

    /// Uses sparse backward passes for this model's products, if configured.
    pub(crate) fn sparse(self, spec: &ModelSpec, config: Option<&SparseBackwardConfig>) -> Self {
        Self {
            selections: Arc::new(config.map_or_else(HashMap::new, |config| selections(spec, config))),
            ..self
        }
    }

    /// Uses this model's adapters, if it has any.
    pub(crate) fn adapted(self, spec: &ModelSpec) -> Self {
        let lora = spec.tuning.as_ref().and_then(|tuning| tuning.lora.as_ref());
        let scales = lora.map(|lora| lora.weights.iter().map(|name| (name.clone(), lora.scale())).collect());
        Self { scales: Arc::new(scales.unwrap_or_default()), ..self }
    }

    /// Defers the gradients of weights to this queue, if any.
    pub(crate) fn deferred(self, deferred: Option<Arc<Deferred>>) -> Self {
        Self { deferred, ..self }
    }

    /// Leaves the columns of the gradients of these weights in this queue.
    pub(crate) fn collecting(self, deferred: Arc<Deferred>, weights: impl Iterator<Item = String>) -> Self {
        Self { deferred: Some(deferred), collected: Some(Arc::new(weights.collect())), ..self }
    }

    /// Joins the members with the other shares of the weights, if any.
    pub(crate) fn among(self, group: Option<Arc<TensorGroup>>) -> Self {
        Self { group, ..self }
    }

    /// Reports whether the group fits this share, or the model is whole.
    pub(super) fn are_of(&self, shard: Shard) -> bool {
        self.group.as_ref().map_or_else(|| shard.is_whole(), |group| group.is_of(shard))
    }

    /// Returns the parameter with this name.
    pub(super) fn matrix(&self, parameters: &Parameters, name: &str) -> Matrix {
        let is_left = self.collected.as_ref().is_none_or(|collected| collected.contains(name));
        let deferred = self.deferred.clone().filter(|_| is_left);
        // The gradient of a frozen weight is not computed.
        let deferred = deferred.filter(|_| parameters.trained(name).is_some());
        let adapter = self.scales.get(name).and_then(|&scale| {
            let [down, up] = adapter_names(name).map(|name| parameters.trained(&name));
            Some(Adapter { down: down?, up: up?, scale })
        });
        Matrix {
            weight: parameters.view(name),
            selection: self.selections.get(name).copied(),
            deferred,
            adapter,
        }
    }

    /// Returns the tensor in the format of products: itself in f32.
    pub(super) fn cast(&self, x: &Tensor) -> Result<Tensor, TchError> {
        if x.f_kind()? == self.kind { Ok(x.shallow_clone()) } else { x.f_to_kind(self.kind) }
    }

    /// Returns x·Wᵀ for x [.., in], W [out, in].
    pub(super) fn linear(&self, x: &Tensor, matrix: &Matrix) -> Result<Tensor, TchError> {
        let (x, Matrix { weight, selection, deferred, .. }) = (self.cast(x)?, matrix);
        let product = match (deferred, *selection) {
            (Some(deferred), selection) => deferred.product(&x, weight, None, Layout::OutFirst, selection), // [.., out]
            (None, Some(selection)) => {
                sparse_product(&x, &self.cast(weight)?, None, Layout::OutFirst, selection) // [.., out]
            }
            (None, None) => x.f_linear::<Tensor>(&self.cast(weight)?, None), // [.., out]
        };
        self.with_adapter(product?, &x, matrix)
    }

    /// Adds the product of the adapter, if the matrix has one, for x in the format of products.
    fn with_adapter(&self, product: Tensor, x: &Tensor, matrix: &Matrix) -> Result<Tensor, TchError> {
        match &matrix.adapter {
            Some(adapter) => product.f_add(&adapter.product(x, self)?),
            None => Ok(product),
        }
    }

    /// Returns x·Wᵀ + b for x [.., in], W [out, in], b [out].
    pub(super) fn affine(&self, x: &Tensor, matrix: &Matrix, bias: &Tensor) -> Result<Tensor, TchError> {
        let (x, Matrix { weight, selection, deferred, .. }) = (self.cast(x)?, matrix);
        if let Some(deferred) = deferred {
            let product = deferred.product(&x, weight, Some(bias), Layout::OutFirst, *selection)?; // [.., out]
            return self.with_adapter(product, &x, matrix);
        }
        let (weight, bias) = (self.cast(weight)?, self.cast(bias)?);
        let product = match *selection {
            Some(selection) => sparse_product(&x, &weight, Some(&bias), Layout::OutFirst, selection), // [.., out]
            None => x.f_linear(&weight, Some(&bias)), // [.., out]
        };
        self.with_adapter(product?, &x, matrix)
    }

    /// Returns x·W + b for x [B, T, in], W [in, out], b [out]: GPT-2's `Conv1D`.
    pub(super) fn conv1d(&self, x: &Tensor, matrix: &Matrix, bias: &Tensor) -> Result<Tensor, TchError> {
        let (size, wide, Matrix { weight, selection, deferred, .. }) =
            (x.size(), matrix.weight.size()[1], matrix);
        let x = self.cast(x)?;
        if let Some(deferred) = deferred {
            let product = deferred.product(&x, weight, Some(bias), Layout::InFirst, *selection)?; // [B, T, out]
            return self.with_adapter(product, &x, matrix);
        }
        let (weight, bias) = (self.cast(weight)?, self.cast(bias)?);
        if let Some(selection) = *selection {
            return sparse_product(&x, &weight, Some(&bias), Layout::InFirst, selection); // [B, T, out]
        }
        let rows = x.f_view([-1, weight.size()[0]])?; // [B·T, in]
        let product = bias.f_addmm(&rows, &weight)?.f_view([size[0], size[1], wide])?; // [B, T, out]
        self.with_adapter(product, &x, matrix)
    }

    /// Returns x [B, T, D], as input of products whose columns are divided among a tensor group.
    pub(super) fn enter_columns(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.group.as_ref().map_or_else(|| Ok(x.shallow_clone()), |group| group.enter(x))
    }

    /// Returns x·Wᵀ for x [.., in] and W [out, in], whose inputs are divided among a tensor group.
    pub(super) fn row_linear(&self, x: &Tensor, matrix: &Matrix) -> Result<Tensor, TchError> {
        let product = self.linear(x, matrix)?; // [.., out]
        match &self.group {
            Some(group) => group.leave(&product.f_to_kind(Kind::Float)?),
            None => Ok(product),
        }
    }

    /// Returns x·W + b for x [B, T, in], W [in, out], whose inputs are divided among a tensor group, and b [out], which all have.
    pub(super) fn row_conv1d(&self, x: &Tensor, matrix: &Matrix, bias: &Tensor) -> Result<Tensor, TchError> {
        let Some(group) = &self.group else { return self.conv1d(x, matrix, bias) };
        // Tensor groups have no adapters.
        let (x, Matrix { weight, selection, deferred, .. }) = (self.cast(x)?, matrix);
        let product = match (deferred, *selection) {
            (Some(deferred), selection) => deferred.product(&x, weight, None, Layout::InFirst, selection)?, // [B, T, out]
            (None, Some(selection)) => {
                sparse_product(&x, &self.cast(weight)?, None, Layout::InFirst, selection)? // [B, T, out]
            }
            (None, None) => x.f_matmul(&self.cast(weight)?)?, // [B, T, out]
        };
        group.leave(&product.f_to_kind(Kind::Float)?)?.f_add(bias)
    }
}

/// Returns the format of products.
pub(super) fn kind_of(precision: Precision) -> Kind {
    match precision {
        Precision::F32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}
