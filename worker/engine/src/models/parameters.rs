//! All parameters of a model as one vector.

use std::collections::HashMap;

use longhaul_common::model::{ModelSpec, ParameterSpec};
use tch::{Device, Kind, TchError, Tensor};

/// One contiguous f32 vector, and the model's parameter tensors as views into it, in the order of [`ModelSpec::parameters`]: synchronisation, optimiser and
/// model share the same memory.
#[derive(Debug)]
pub struct Parameters {
    flat: Tensor,
    views: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    /// The parameter borrowed from another part of the model.
    borrowed: Option<(String, Tensor)>,
}

impl Parameters {
    /// Copies `values`, in the order of [`ModelSpec::parameters`], to the device.
    ///
    /// # Errors
    /// The length of `values` is wrong; or libtorch fails.
    pub fn new(spec: &ModelSpec, values: &[f32], device: Device) -> Result<Self, TchError> {
        let flat = Tensor::f_from_slice(values)?.f_to_device(device)?; // [P]
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
        Ok(Self { flat, views, by_name, borrowed })
    }

    /// Returns the borrowed tensor ([`ModelSpec::borrowed`]), a leaf of autograd's graph: zero until its holder sends its values.
    pub fn borrowed(&self) -> Option<&Tensor> {
        self.borrowed.as_ref().map(|(_, tensor)| tensor)
    }

    /// Returns all values, `[P]`, outside autograd.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Returns the parameter tensors, which require gradients.
    pub fn views(&self) -> &[Tensor] {
        &self.views
    }

    /// Returns the parameter tensor with this name, held or borrowed.
    ///
    /// # Panics
    /// [`ModelSpec::parameters`] does not list it and it is not borrowed: a model and its specification disagree.
    pub fn view(&self, name: &str) -> Tensor {
        if let Some((_, tensor)) = self.borrowed.as_ref().filter(|(borrowed, _)| borrowed == name) {
            return tensor.shallow_clone();
        }
        let at = self.by_name.get(name).unwrap_or_else(|| panic!("the specification does not list {name}"));
        self.views[*at].shallow_clone()
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
    let mut start = 0;
    let mut cut = |shape: Vec<u64>| {
        let shape: Vec<i64> = shape.into_iter().map(|size| size as i64).collect();
        let len: i64 = shape.iter().product();
        let view = flat.f_narrow(0, start, len)?.f_view(shape.as_slice());
        start += len;
        view
    };
    spec.parameters().into_iter().map(|parameter| cut(parameter.shape)).collect()
}
