//! Frozen weights of a pretrained model, in a format of their own, through the shim in `native/frozen_product.cpp`.
#![allow(unsafe_code, reason = "calls C++")]

mod filling;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ffi::c_char;

use longhaul_common::config::{FrozenFormat, ModelKind};
use longhaul_common::model::{ModelSpec, ParameterSpec};
use longhaul_proto::stored_values::StoredValues;
use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use self::filling::Filling;
use super::adapter::squares_of;
use super::sparse::Layout;
use crate::shim::Reason;

/// Tensors of a pretrained model that are not trained, by name, on one device.
#[derive(Debug)]
pub struct FrozenWeights {
    tensors: HashMap<String, Frozen>,
    /// Those with some of their values.
    filling: HashMap<String, Filling>,
    format: FrozenFormat,
    /// Names of weights that are matrices of products, and nothing else.
    multiplied: BTreeSet<String>,
    device: Device,
}

/// A frozen tensor.
#[derive(Debug)]
pub(super) enum Frozen {
    /// Its values.
    Plain(Tensor),
    /// The values of a product's matrix, as codes with scales.
    Coded(Coded),
}

/// A matrix as int8 with a scale for each row, or NF4 with a scale for 64 values.
#[derive(Debug)]
pub(super) struct Coded {
    codes: Tensor,
    scales: Tensor,
    rows: i64,
    columns: i64,
}

impl FrozenWeights {
    /// Creates an empty collection for the frozen tensors of this model. Products' matrices have the model's format. The embedding is in bf16 if that is
    /// narrower than f32; vectors are in f32.
    #[must_use]
    pub fn of(spec: &ModelSpec, device: Device) -> Self {
        let format = spec.tuning.as_ref().map_or(FrozenFormat::F32, |tuning| tuning.base);
        Self {
            tensors: HashMap::new(),
            filling: HashMap::new(),
            format,
            multiplied: spec.multiplied(),
            device,
        }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Adds a tensor's values, which are rounded to its format.
    ///
    /// # Errors
    /// Their number is wrong; or libtorch fails.
    pub fn add(&mut self, of: &ParameterSpec, values: &[f32]) -> Result<(), TchError> {
        self.write(of, 0, StoredValues::of(values))?;
        if self.filling.remove(&of.name).is_some() {
            return Err(TchError::Shape(format!(
                "{} has {} values, not {}",
                of.name,
                of.count(),
                values.len()
            )));
        }
        Ok(())
    }

    /// Adds some of a tensor's values, from the place `first` on. They are rounded to its format. Pieces of a product's matrix must come in order.
    ///
    /// # Errors
    /// There are too many, they are out of order, or one is not finite; or libtorch fails.
    pub fn write(
        &mut self,
        of: &ParameterSpec,
        first: usize,
        values: StoredValues<'_>,
    ) -> Result<(), TchError> {
        let filling = match self.filling.entry(of.name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Filling::new(of, self.format, self.multiplied.contains(&of.name))?)
            }
        };
        filling.write(first, values)?;
        if filling.is_full()
            && let Some((name, full)) = self.filling.remove_entry(&of.name)
        {
            self.tensors.insert(name, full.finish(self.device)?);
        }
        Ok(())
    }

    /// Returns a tensor.
    pub(super) fn get(&self, name: &str) -> Option<&Frozen> {
        self.tensors.get(name)
    }

    /// Returns a tensor in f32, as products use it.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn values(&self, name: &str) -> Option<Result<Tensor, TchError>> {
        self.tensors.get(name).map(|frozen| match frozen {
            Frozen::Plain(tensor) => tensor.f_to_kind(Kind::Float),
            Frozen::Coded(coded) => coded.values(),
        })
    }

    /// Returns the lengths of the rows of a frozen matrix, as they are here: of the columns of GPT-2's, which are stored transposed.
    ///
    /// # Errors
    /// It is not here; or libtorch fails.
    pub fn row_lengths(&self, name: &str, kind: ModelKind) -> Result<Vec<f32>, TchError> {
        let missing = || Err(TchError::Shape(format!("the frozen tensor {name} is missing")));
        let stored = self.values(name).unwrap_or_else(missing)?;
        let matrix = if kind == ModelKind::Gpt2 { stored.f_tr()? } else { stored };
        Vec::try_from(squares_of(&matrix)?.f_sqrt()?.f_to_device(Device::Cpu)?)
    }

    /// Returns the names.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Checks that all frozen tensors of a model are here.
    pub(super) fn check(&self, spec: &ModelSpec) -> Result<(), TchError> {
        if let Some(name) = self.filling.keys().next() {
            return Err(TchError::Shape(format!("the frozen tensor {name} has not all of its values")));
        }
        let missing = spec.frozen().into_iter().find(|tensor| !self.tensors.contains_key(&tensor.name));
        missing.map_or(Ok(()), |tensor| {
            Err(TchError::Shape(format!("the frozen tensor {} is missing", tensor.name)))
        })
    }
}

impl Coded {
    fn borrowed(&self) -> Borrowed {
        let (rows, columns) = (self.rows, self.columns);
        Borrowed { codes: self.codes.as_ptr(), scales: self.scales.as_ptr(), rows, columns }
    }

    /// Returns the matrix in f32.
    pub(super) fn values(&self) -> Result<Tensor, TchError> {
        let mut reason = Reason::default();
        // SAFETY: the tensors are borrowed; the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let values = unsafe { longhaul_frozen_values(self.borrowed(), reason.as_mut_ptr(), Reason::SIZE) };
        owned(values, reason)
    }

    pub(super) fn shallow_clone(&self) -> Self {
        Self { codes: self.codes.shallow_clone(), scales: self.scales.shallow_clone(), ..*self }
    }

    pub(super) fn product(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        layout: Layout,
    ) -> Result<Tensor, TchError> {
        product(x, self.borrowed(), bias, layout)
    }
}

/// Returns x·Wᵀ or x·W, plus b, for x [.., in] and b [out] in the format of products, and a frozen W in another: autograd keeps W as it is, and not its
/// values in the format of products.
///
/// # Errors
/// libtorch fails.
pub(super) fn narrow_product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: Layout,
) -> Result<Tensor, TchError> {
    let (rows, columns) = weight.size2()?;
    product(x, Borrowed { codes: weight.as_ptr(), scales: std::ptr::null(), rows, columns }, bias, layout)
}

fn product(x: &Tensor, matrix: Borrowed, bias: Option<&Tensor>, layout: Layout) -> Result<Tensor, TchError> {
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    let mut reason = Reason::default();
    // SAFETY: the tensors are borrowed; the shim holds its own references, lets no exception out and writes at most `SIZE` bytes of the reason.
    let product = unsafe {
        longhaul_frozen_product(
            x.as_ptr(),
            matrix,
            bias,
            layout == Layout::InFirst,
            reason.as_mut_ptr(),
            Reason::SIZE,
        )
    };
    owned(product, reason)
}

fn owned(tensor: *mut C_tensor, reason: Reason) -> Result<Tensor, TchError> {
    if tensor.is_null() {
        return Err(reason.into_error());
    }
    // SAFETY: the shim transfers tensors that it has made with `new`.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

/// `LonghaulFrozen` of the shim.
#[repr(C)]
#[derive(Clone, Copy)]
struct Borrowed {
    codes: *const C_tensor,
    scales: *const C_tensor,
    rows: i64,
    columns: i64,
}

unsafe extern "C" {
    fn longhaul_frozen_product(
        x: *const C_tensor,
        matrix: Borrowed,
        bias: *const C_tensor,
        in_first: bool,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;

    fn longhaul_frozen_values(matrix: Borrowed, reason: *mut c_char, reason_size: usize) -> *mut C_tensor;
}

#[cfg(test)]
mod tests;
