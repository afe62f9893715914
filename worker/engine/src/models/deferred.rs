//! Products whose backward pass returns the gradient of the input, and defers those of the weights (Qi et al. 2024, "Zero bubble pipeline parallelism"),
//! through the shim in `native/deferred_weights.cpp`.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;
use std::ptr::NonNull;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::sparse::{Layout, Selection};
use crate::shim::{Reason, pointers};

/// Queue of the work deferred by backward passes.
#[derive(Debug)]
pub(crate) struct Deferred(NonNull<Handle>);

// SAFETY: the shim guards the queue with a mutex, and tensors may be used by any thread.
unsafe impl Send for Deferred {}
// SAFETY: as above.
unsafe impl Sync for Deferred {}

impl Deferred {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> Result<Self, TchError> {
        Self::leaving(false)
    }

    /// Creates an empty queue for backward passes that leave only the computed columns of weight gradients ([`Left::columns`]).
    ///
    /// # Errors
    /// Out of memory.
    pub fn of_columns() -> Result<Self, TchError> {
        Self::leaving(true)
    }

    fn leaving(columns_only: bool) -> Result<Self, TchError> {
        let mut reason = Reason::default();
        // SAFETY: the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let handle = unsafe { longhaul_new_deferred(columns_only, reason.as_mut_ptr(), Reason::SIZE) };
        NonNull::new(handle).map(Self).ok_or_else(|| reason.into_error())
    }

    /// Returns x·Wᵀ or x·W, plus b, for x [.., in] in the format of products, and leaves of autograd's graph for W and b. With a selection, the gradients of
    /// x and W use the selected part of the product's gradient.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn product(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        layout: Layout,
        selection: Option<Selection>,
    ) -> Result<Tensor, TchError> {
        let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
        let mut reason = Reason::default();
        // SAFETY: the tensors are borrowed and the handle lives; the shim holds its own references, lets no exception out and writes at most `SIZE` bytes of
        // the reason.
        let product = unsafe {
            longhaul_deferred_product(
                self.0.as_ptr(),
                x.as_ptr(),
                weight.as_ptr(),
                bias,
                layout == Layout::InFirst,
                selection.map_or(0, Selection::kept),
                selection.is_some_and(Selection::is_by_row),
                reason.as_mut_ptr(),
                Reason::SIZE,
            )
        };
        owned(product).ok_or_else(|| reason.into_error())
    }

    /// Takes the work deferred since the last call.
    ///
    /// # Errors
    /// Out of memory.
    pub fn take(&self) -> Result<Left, TchError> {
        let mut reason = Reason::default();
        // SAFETY: the handle lives.
        let left = unsafe { longhaul_take_left(self.0.as_ptr(), reason.as_mut_ptr(), Reason::SIZE) };
        NonNull::new(left).map(Left).ok_or_else(|| reason.into_error())
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        // SAFETY: it was made by the shim, and is freed once. Remaining graphs own everything they need.
        unsafe { longhaul_free_deferred(self.0.as_ptr()) }
    }
}

/// Deferred work of a backward pass: each product's input and the gradient of its output.
#[derive(Debug)]
pub(crate) struct Left(NonNull<LeftHandle>);

// SAFETY: it is a list of exclusively owned tensors, which may be used by any thread.
unsafe impl Send for Left {}

impl Left {
    /// Returns the gradients of these leaves; `None` if none was deferred.
    ///
    /// # Errors
    /// A product's weight is not among them; or libtorch fails.
    pub fn gradients(&self, leaves: &[Tensor]) -> Result<Vec<Option<Tensor>>, TchError> {
        let list = pointers(leaves);
        let mut gradients = vec![std::ptr::null_mut(); list.len()];
        let mut reason = Reason::default();
        // SAFETY: both lists have `len` places; the handle lives; the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let computed = unsafe {
            longhaul_left_gradients(
                self.0.as_ptr(),
                list.as_ptr(),
                list.len(),
                gradients.as_mut_ptr(),
                reason.as_mut_ptr(),
                Reason::SIZE,
            )
        };
        if computed { Ok(gradients.into_iter().map(owned).collect()) } else { Err(reason.into_error()) }
    }
}

/// Columns [k] of the gradient of a weight, and their values [k, in].
pub(crate) type Columns = (Tensor, Tensor);

impl Left {
    /// Returns the columns of the gradients of these leaves; `None` if none were left.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn columns(&self, leaves: &[Tensor]) -> Result<Vec<Option<Columns>>, TchError> {
        let list = pointers(leaves);
        let mut columns = vec![std::ptr::null_mut(); list.len()];
        let mut values = columns.clone();
        let mut reason = Reason::default();
        // SAFETY: all lists have `len` places; the handle lives; the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let computed = unsafe {
            longhaul_left_columns(
                self.0.as_ptr(),
                list.as_ptr(),
                list.len(),
                columns.as_mut_ptr(),
                values.as_mut_ptr(),
                reason.as_mut_ptr(),
                Reason::SIZE,
            )
        };
        let found =
            columns.into_iter().zip(values).map(|(columns, values)| owned(columns).zip(owned(values)));
        if computed { Ok(found.collect()) } else { Err(reason.into_error()) }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // SAFETY: it was made by the shim, and is freed once.
        unsafe { longhaul_free_left(self.0.as_ptr()) }
    }
}

/// Takes over a tensor made by the shim, if any.
fn owned(tensor: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: the shim transfers tensors that it has made with `new`.
    (!tensor.is_null()).then(|| unsafe { Tensor::from_ptr(tensor) })
}

/// `longhaul_deferred`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

/// `longhaul_left`.
#[repr(C)]
struct LeftHandle {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn longhaul_new_deferred(columns_only: bool, reason: *mut c_char, reason_size: usize) -> *mut Handle;
    fn longhaul_free_deferred(deferred: *mut Handle);
    fn longhaul_deferred_product(
        deferred: *mut Handle,
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        in_first: bool,
        kept: i64,
        by_row: bool,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
    fn longhaul_take_left(deferred: *mut Handle, reason: *mut c_char, reason_size: usize) -> *mut LeftHandle;
    fn longhaul_free_left(left: *mut LeftHandle);
    fn longhaul_left_gradients(
        left: *const LeftHandle,
        leaves: *const *const C_tensor,
        count: usize,
        gradients: *mut *mut C_tensor,
        reason: *mut c_char,
        reason_size: usize,
    ) -> bool;
    fn longhaul_left_columns(
        left: *const LeftHandle,
        leaves: *const *const C_tensor,
        count: usize,
        columns: *mut *mut C_tensor,
        values: *mut *mut C_tensor,
        reason: *mut c_char,
        reason_size: usize,
    ) -> bool;
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::testing::test_device;

    fn leaf(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, test_device())).set_requires_grad(true)
    }

    /// Against autograd's own products: the same bits, or rounding where it uses another order.
    #[test]
    fn what_is_left_makes_the_gradients_that_autograd_makes() {
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
            let (x, rows, columns) = (leaf(&[2, 3, 8]), leaf(&[5, 8]), leaf(&[5, 4]));
            let (bias, weights) = (leaf(&[4]), Tensor::randn([2, 3, 4], (Kind::Float, test_device())));
            let loss = |y: &Tensor| (y.to_kind(Kind::Float).gelu("none") * &weights).sum(Kind::Float);
            let plain = x.to_kind(kind).linear::<Tensor>(&rows.to_kind(kind), None);
            let plain = plain.matmul(&columns.to_kind(kind)) + bias.to_kind(kind);
            let leaves = [&rows, &columns, &bias, &x].map(Tensor::shallow_clone);
            let expected = Tensor::run_backward(&[loss(&plain)], &leaves, false, false);

            let deferred = Deferred::new().unwrap();
            let y = deferred.product(&x.to_kind(kind), &rows, None, Layout::OutFirst, None).unwrap();
            let y = deferred.product(&y, &columns, Some(&bias), Layout::InFirst, None).unwrap();
            let mut found = Tensor::run_backward(&[loss(&y)], &leaves, false, false);
            assert!(found[..3].iter().all(|gradient| !gradient.defined()), "weights wait");
            let left = deferred.take().unwrap().gradients(&leaves[..3]).unwrap();
            found.splice(..3, left.into_iter().map(Option::unwrap));
            for (expected, found) in expected.iter().zip(&found) {
                assert_eq!(expected.size(), found.size());
                let apart = (expected - found).abs().max().double_value(&[]);
                assert!(apart <= tolerance * expected.abs().max().double_value(&[]), "{kind:?}: {apart}");
            }
            let nothing = deferred.take().unwrap().gradients(&leaves[..3]).unwrap();
            assert!(nothing.iter().all(Option::is_none), "taking empties the queue");
        }
    }

    #[test]
    fn a_weight_in_two_products_has_the_sum_of_both() {
        let (x, weight, deferred) = (leaf(&[4, 6]), leaf(&[6, 6]), Deferred::new().unwrap());
        let through = |y: &Tensor| deferred.product(y, &weight, None, Layout::OutFirst, None).unwrap();
        let y = through(&through(&x)).sum(Kind::Float);
        let plain = x.linear::<Tensor>(&weight, None).linear::<Tensor>(&weight, None).sum(Kind::Float);
        let expected = Tensor::run_backward(&[plain], &[&weight], false, false);
        Tensor::run_backward(&[y], &[&x], false, false);
        let leaves = [weight.shallow_clone()];
        let found = deferred.take().unwrap().gradients(&leaves).unwrap();
        assert!(found[0].as_ref().unwrap().allclose(&expected[0], 1e-5, 1e-5, false));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (deferred, weight) = (Deferred::new().unwrap(), leaf(&[5, 8]));
        assert!(deferred.product(&leaf(&[2, 3]), &weight, None, Layout::OutFirst, None).is_err());
        let y = deferred.product(&leaf(&[2, 8]), &weight, None, Layout::OutFirst, None).unwrap();
        Tensor::run_backward(&[y.sum(Kind::Float)], &[&weight], false, false);
        let error = deferred.take().unwrap().gradients(&[leaf(&[5, 8])]).unwrap_err().to_string();
        assert!(error.contains("none of the leaves"), "{error}");
    }
}
