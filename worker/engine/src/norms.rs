//! libtorch's norms of many tensors at once, through the shim in `native/norms.cpp`: a few kernels on a GPU, in place of two per tensor.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::{Reason, pointers};

/// Returns the L2 norms [tensors] of these tensors, which are on one device.
///
/// # Errors
/// The list is empty; or libtorch fails.
pub(super) fn norms(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    let pointers = pointers(tensors);
    let mut reason = Reason::default();
    // SAFETY: every pointer is to a tensor that this function borrows. The shim lets no exception out, keeps nothing, writes at most `size` bytes of the
    // reason, and returns an exclusively owned tensor, or null.
    unsafe {
        let norms = longhaul_norms(pointers.as_ptr(), pointers.len(), reason.as_mut_ptr(), Reason::SIZE);
        if norms.is_null() { Err(reason.into_error()) } else { Ok(Tensor::from_ptr(norms)) }
    }
}

unsafe extern "C" {
    fn longhaul_norms(
        tensors: *const *const C_tensor,
        count: usize,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::testing::test_device;

    #[test]
    fn they_are_those_of_each_tensor_whatever_its_shape() {
        let shapes: [&[i64]; 4] = [&[3000, 7], &[1], &[5, 4, 3], &[100_000]];
        let tensors = shapes.map(|shape| Tensor::randn(shape, (Kind::Float, test_device())));
        let found = Vec::<f32>::try_from(norms(&tensors).unwrap()).unwrap();
        assert_eq!(found.len(), tensors.len());
        for (tensor, found) in tensors.iter().zip(found) {
            let squares = tensor.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
            assert!((f64::from(found) / squares.sqrt() - 1.0).abs() < 1e-5, "{found} of {tensor:?}");
        }
        assert!(norms(&[]).is_err());
    }
}
