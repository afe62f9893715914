//! All parameters of a model as one vector.

use std::collections::HashMap;

use longhaul_common::model::{ModelSpec, ParameterSpec};
use tch::{Device, Kind, TchError, Tensor};

use super::frozen::{Frozen, FrozenWeights};
use super::subspace::Subspace;
use crate::host_tensor::host_tensor;

/// One contiguous f32 vector, and the model's parameter tensors as views into it, in the order of [`ModelSpec::parameters`]: synchronisation, optimiser and
/// model share the same memory.
#[derive(Debug)]
pub struct Parameters {
    flat: Tensor,
    views: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    /// The parameter borrowed from another part of the model.
    borrowed: Option<(String, Tensor)>,
    /// Tensors that are not trained.
    frozen: FrozenWeights,
    /// Fixed values of the residual stream.
    subspace: Option<Subspace>,
}

impl Parameters {
    /// Copies `values`, in the order of [`ModelSpec::parameters`], to the device.
    ///
    /// # Errors
    /// The length of `values` is wrong; or libtorch fails.
    pub fn new(spec: &ModelSpec, values: &[f32], device: Device) -> Result<Self, TchError> {
        Self::beside(spec, values, FrozenWeights::of(spec, device))
    }

    /// The same beside frozen tensors, on their device.
    ///
    /// # Errors
    /// A frozen tensor is missing, or the length of `values` is wrong; or libtorch fails.
    pub fn beside(spec: &ModelSpec, values: &[f32], frozen: FrozenWeights) -> Result<Self, TchError> {
        frozen.check(spec)?;
        let device = frozen.device();
        let flat = host_tensor(values)?.f_to_device(device)?; // [P]
        let views: Vec<Tensor> = views_of(spec, &flat)?
            .into_iter()
            // A leaf of autograd's graph, in the same memory.
            .map(|view| view.f_detach()?.f_set_requires_grad(true))
            .collect::<Result<_, _>>()?;
        let names = spec.parameters().into_iter().map(|parameter| parameter.name);
        let by_name = names.enumerate().map(|(at, name)| (name, at)).collect();
        let borrow = |tensor: ParameterSpec| {
            let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
            let zeros = Tensor::f_zeros(shape.as_slice(), (Kind::Float, device))?;
            Ok::<_, TchError>((tensor.name, zeros.f_set_requires_grad(true)?))
        };
        let borrowed = spec.borrowed().map(borrow).transpose()?;
        let subspace = Subspace::of(spec, device)?;
        Ok(Self { flat, views, by_name, borrowed, frozen, subspace })
    }

    /// Returns the borrowed tensor ([`ModelSpec::borrowed`]), a leaf of autograd's graph: zero until its holder sends its values.
    pub fn borrowed(&self) -> Option<&Tensor> {
        self.borrowed.as_ref().map(|(_, tensor)| tensor)
    }

    /// Returns the fixed subspace of the residual stream, if it is in one.
    pub(crate) fn subspace(&self) -> Option<&Subspace> {
        self.subspace.as_ref()
    }

    /// Returns all values, `[P]`, outside autograd.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Returns the parameter tensors, which require gradients.
    pub fn views(&self) -> &[Tensor] {
        &self.views
    }

    /// Returns the frozen tensors.
    pub(crate) fn frozen(&self) -> &FrozenWeights {
        &self.frozen
    }

    /// Returns the trained tensor with this name, if it is one.
    pub fn trained(&self, name: &str) -> Option<Tensor> {
        self.by_name.get(name).map(|at| self.views[*at].shallow_clone())
    }

    /// Returns the parameter tensor with this name: trained, frozen with values as they are, or borrowed.
    ///
    /// # Panics
    /// Neither [`ModelSpec::parameters`] nor [`ModelSpec::frozen`] lists it, and it is not borrowed; or it is frozen in codes: a model and its
    /// specification disagree.
    pub fn view(&self, name: &str) -> Tensor {
        if let Some((_, tensor)) = self.borrowed.as_ref().filter(|(borrowed, _)| borrowed == name) {
            return tensor.shallow_clone();
        }
        let frozen = || match self.frozen.get(name) {
            Some(Frozen::Plain(tensor)) => Some(tensor.shallow_clone()),
            Some(Frozen::Coded(_)) | None => None,
        };
        let tensor = self.trained(name).or_else(frozen);
        tensor.unwrap_or_else(|| panic!("the specification does not list {name}"))
    }
}

/// Cuts a vector `[P]` into views shaped like the parameter tensors, in order.
///
/// # Errors
/// Its length is wrong.
pub(crate) fn views_of(spec: &ModelSpec, flat: &Tensor) -> Result<Vec<Tensor>, TchError> {
    if flat.f_kind()? != Kind::Float || flat.size() != [spec.parameter_count() as i64] {
        return Err(TchError::Shape(format!(
            "a model of {} parameters cannot be cut out of {flat:?}",
            spec.parameter_count()
        )));
    }
    views(&spec.parameters(), flat)
}

/// Cuts a vector into views shaped like these tensors, in order.
///
/// # Errors
/// It is too short.
pub(crate) fn views(tensors: &[ParameterSpec], flat: &Tensor) -> Result<Vec<Tensor>, TchError> {
    let mut start = 0;
    let mut cut = |tensor: &ParameterSpec| {
        let shape: Vec<i64> = tensor.shape.iter().map(|&size| size as i64).collect();
        let len: i64 = shape.iter().product();
        let view = flat.f_narrow(0, start, len)?.f_view(shape.as_slice());
        start += len;
        view
    };
    tensors.iter().map(&mut cut).collect()
}
