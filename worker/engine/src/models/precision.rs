//! Products in the precision of the run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longhaul_common::config::{Precision, SparseBackwardConfig};
use longhaul_common::model::{Lora, ModelSpec, Shard};
use tch::{Kind, TchError, Tensor};

use super::adapter::Adapter;
use super::deferred::Deferred;
use super::dropout::{Dropout, Site};
use super::frozen::{Coded, Frozen, narrow_product};
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
    /// The adapters beside frozen weights.
    lora: Option<Arc<Lora>>,
    /// Dropout of this pass.
    dropout: Option<Dropout>,
}

/// The weight of a product, and the selection of its backward pass; `None`: dense.
#[derive(Debug)]
pub(super) struct Matrix {
    weight: Weight,
    selection: Option<Selection>,
    /// Queue of its deferred gradient.
    deferred: Option<Arc<Deferred>>,
    adapter: Option<Adapter>,
}

#[derive(Debug)]
enum Weight {
    /// Trained, or frozen in the format of products.
    Dense(Tensor),
    /// Frozen in another format.
    Narrow(Tensor),
    /// Frozen in codes.
    Coded(Coded),
}

impl Matrix {
    /// Returns its values, [out, in] in f32.
    fn values(&self, layout: Layout) -> Result<Tensor, TchError> {
        let stored = match &self.weight {
            Weight::Dense(weight) | Weight::Narrow(weight) => weight.f_to_kind(Kind::Float)?,
            Weight::Coded(coded) => coded.values()?,
        };
        if layout == Layout::InFirst { stored.f_tr() } else { Ok(stored) }
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
            lora: None,
            dropout: None,
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
        let lora = spec.tuning.as_ref().and_then(|tuning| tuning.lora.clone()).map(Arc::new);
        Self { lora, ..self }
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

    /// Returns the products of a pass.
    pub(super) fn within(&self, dropout: Option<&Dropout>) -> Self {
        Self { dropout: dropout.cloned(), ..self.clone() }
    }

    /// Returns the input of an adapter, [B, .., in], behind its dropout.
    pub(super) fn dropped(&self, x: &Tensor, adapter: u64) -> Result<Tensor, TchError> {
        let dropout = self.dropout.as_ref();
        dropout.map_or(Ok(x.shallow_clone()), |dropout| dropout.applied(x, Site::Adapter(adapter)))
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
        let adapter = self.lora.as_ref().and_then(|lora| Adapter::of(parameters, name, lora));
        let weight = match parameters.frozen().get(name) {
            Some(Frozen::Coded(coded)) => Weight::Coded(coded.shallow_clone()),
            Some(Frozen::Plain(weight)) if weight.kind() != self.kind => {
                Weight::Narrow(weight.shallow_clone())
            }
            Some(Frozen::Plain(_)) | None => Weight::Dense(parameters.view(name)),
        };
        Matrix { weight, selection: self.selections.get(name).copied(), deferred, adapter }
    }

    /// Returns the tensor in the format of products: itself in f32.
    pub(super) fn cast(&self, x: &Tensor) -> Result<Tensor, TchError> {
        if x.f_kind()? == self.kind { Ok(x.shallow_clone()) } else { x.f_to_kind(self.kind) }
    }

    /// Returns x·Wᵀ for x [.., in], W [out, in].
    pub(super) fn linear(&self, x: &Tensor, matrix: &Matrix) -> Result<Tensor, TchError> {
        self.product(x, matrix, None, Layout::OutFirst)
    }

    /// Returns x·Wᵀ + b for x [.., in], W [out, in], b [out].
    pub(super) fn affine(&self, x: &Tensor, matrix: &Matrix, bias: &Tensor) -> Result<Tensor, TchError> {
        self.product(x, matrix, Some(bias), Layout::OutFirst)
    }

    /// Returns x·W + b for x [B, T, in], W [in, out], b [out]: GPT-2's `Conv1D`.
    pub(super) fn conv1d(&self, x: &Tensor, matrix: &Matrix, bias: &Tensor) -> Result<Tensor, TchError> {
        self.product(x, matrix, Some(bias), Layout::InFirst)
    }

    /// Returns x·W for x [B, T, in], W [in, out].
    pub(super) fn bare_conv1d(&self, x: &Tensor, matrix: &Matrix) -> Result<Tensor, TchError> {
        self.product(x, matrix, None, Layout::InFirst)
    }

    /// Returns the product with a matrix, its adapter's, and the bias.
    fn product(
        &self,
        x: &Tensor,
        matrix: &Matrix,
        bias: Option<&Tensor>,
        layout: Layout,
    ) -> Result<Tensor, TchError> {
        let x = self.cast(x)?;
        let Some(adapter) = &matrix.adapter else { return self.own_product(&x, matrix, bias, layout) };
        let (before, behind) = if adapter.rescales() { (None, bias) } else { (bias, None) };
        let product = self.own_product(&x, matrix, before, layout)?;
        let sum = adapter.added_to(&product, &x, self, || matrix.values(layout))?;
        match behind {
            Some(bias) => sum.f_add(&self.cast(bias)?),
            None => Ok(sum),
        }
    }

    /// The same without the adapter, for x in the format of products.
    fn own_product(
        &self,
        x: &Tensor,
        Matrix { weight, selection, deferred, .. }: &Matrix,
        bias: Option<&Tensor>,
        layout: Layout,
    ) -> Result<Tensor, TchError> {
        if let (Some(deferred), Weight::Dense(weight)) = (deferred, weight) {
            return deferred.product(x, weight, bias, layout, *selection);
        }
        let bias = bias.map(|bias| self.cast(bias)).transpose()?;
        let weight = match weight {
            Weight::Dense(weight) => self.cast(weight)?,
            Weight::Narrow(weight) => return narrow_product(x, weight, bias.as_ref(), layout),
            Weight::Coded(coded) => return coded.product(x, bias.as_ref(), layout),
        };
        match (*selection, layout, &bias) {
            (Some(selection), ..) => sparse_product(x, &weight, bias.as_ref(), layout, selection),
            (None, Layout::OutFirst, bias) => x.f_linear(&weight, bias.as_ref()),
            (None, Layout::InFirst, None) => x.f_matmul(&weight),
            (None, Layout::InFirst, Some(bias)) => {
                let (size, (inputs, outputs)) = (x.size(), weight.size2()?);
                let rows = x.f_view([-1, inputs])?; // [B·T, in]
                bias.f_addmm(&rows, &weight)?.f_view([size[0], size[1], outputs])
            }
        }
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
        // Tensor groups have no frozen weights, and no adapters.
        let (Some(group), Weight::Dense(weight)) = (&self.group, &matrix.weight) else {
            return self.conv1d(x, matrix, bias);
        };
        let (x, Matrix { selection, deferred, .. }) = (self.cast(x)?, matrix);
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
