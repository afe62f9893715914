//! Pinned memory, through the shim in `native/pinned.cpp`.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::Reason;

/// Copies a host tensor to pinned memory, which a GPU accesses directly; returns it unchanged if already pinned.
///
/// # Errors
/// No GPU exists; or libtorch fails.
pub(crate) fn pinned(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut reason = Reason::default();
    // SAFETY: the pointer is to a tensor that this function borrows. The shim lets no exception out, keeps nothing, writes at most `size` bytes of the
    // reason, and returns an exclusively owned tensor, or null.
    unsafe {
        let pinned = longhaul_pinned(tensor.as_ptr(), reason.as_mut_ptr(), Reason::SIZE);
        if pinned.is_null() { Err(reason.into_error()) } else { Ok(Tensor::from_ptr(pinned)) }
    }
}

unsafe extern "C" {
    fn longhaul_pinned(tensor: *const C_tensor, reason: *mut c_char, reason_size: usize) -> *mut C_tensor;
}

#[cfg(test)]
mod tests {
    use tch::{Cuda, Kind};

    use super::*;

    #[test]
    fn a_pinned_tensor_has_the_values_and_without_a_gpu_there_is_none() {
        let tensor = Tensor::arange(10, (Kind::Float, tch::Device::Cpu));
        match pinned(&tensor) {
            Ok(there) => assert!(there.equal(&tensor) && there.is_pinned(tch::Device::Cuda(0))),
            Err(error) => assert!(!Cuda::is_available(), "{error}"),
        }
    }
}
