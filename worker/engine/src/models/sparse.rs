//! Products whose backward pass uses only the largest gradients of their output (meProp: Sun et al. 2017, arXiv 1706.06197), through the shim in
//! `native/sparse_backward.cpp`. `docs/sparse.md` is the design.
#![allow(unsafe_code, reason = "calls C++")]

use std::collections::HashMap;
use std::ffi::c_char;
use std::num::NonZeroU32;

use longhaul_common::config::{SparseBackwardConfig, SparseMode};
use longhaul_common::model::ModelSpec;
use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::Reason;

/// First dimension of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// [out, in]
    OutFirst,
    /// [in, out]
    InFirst,
}

/// The part of the gradient [.., out] of a product used by a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    kept: NonZeroU32,
    mode: SparseMode,
}

impl Selection {
    /// Selects `kept` values of each row, or `kept` columns.
    #[must_use]
    pub fn new(kept: NonZeroU32, mode: SparseMode) -> Self {
        Self { kept, mode }
    }

    pub(super) fn kept(self) -> i64 {
        i64::from(self.kept.get())
    }

    pub(super) fn is_by_row(self) -> bool {
        self.mode == SparseMode::Rows
    }
}

/// Returns x·Wᵀ or x·W, plus b, for x [.., in], W and b in one format. The selected part of the output's gradient dy makes dx and dW, and all of it makes db.
/// If all columns are kept, the bits are those of libtorch's own products.
///
/// # Errors
/// Sizes or formats do not match; or libtorch fails.
pub fn sparse_product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: Layout,
    selection: Selection,
) -> Result<Tensor, TchError> {
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    let mut reason = Reason::default();
    // SAFETY: the tensors are borrowed; the shim holds its own references, lets no exception out and writes at most `SIZE` bytes of the reason.
    let product = unsafe {
        longhaul_sparse_product(
            x.as_ptr(),
            weight.as_ptr(),
            bias,
            layout == Layout::InFirst,
            selection.kept(),
            selection.is_by_row(),
            reason.as_mut_ptr(),
            Reason::SIZE,
        )
    };
    if product.is_null() {
        return Err(reason.into_error());
    }
    // SAFETY: the shim transfers tensors that it has made with `new`.
    Ok(unsafe { Tensor::from_ptr(product) })
}

/// Returns the selection for each product with a sparse backward pass, by name of its weight.
pub(super) fn selections(spec: &ModelSpec, config: &SparseBackwardConfig) -> HashMap<String, Selection> {
    let sparse = spec.sparse_products(config).into_iter();
    sparse.map(|(product, kept)| (product.weight, Selection::new(kept, config.mode))).collect()
}

unsafe extern "C" {
    fn longhaul_sparse_product(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        in_first: bool,
        kept: i64,
        by_row: bool,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
}

#[cfg(test)]
mod tests;
