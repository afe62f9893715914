//! Count of the multiplications in libtorch's matrix products, through the shim in `native/multiplications.cpp`.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;
use std::ptr::NonNull;

use tch::TchError;

use crate::shim::Reason;

/// Returns the result of `work`, and the multiplications of libtorch's matrix products for it on this thread, including backward passes on a CPU.
///
/// # Errors
/// libtorch fails, or `work` does.
pub fn count_multiplications<T>(work: impl FnOnce() -> Result<T, TchError>) -> Result<(T, u64), TchError> {
    let count = Count::begin()?;
    let given = work();
    let multiplications = count.end()?;
    Ok((given?, multiplications))
}

/// A count in progress. It always ends, because it slows later work down: its drop means that `work` has panicked.
struct Count(Option<NonNull<Handle>>);

impl Count {
    fn begin() -> Result<Self, TchError> {
        let mut reason = Reason::default();
        // SAFETY: the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let handle = unsafe { longhaul_begin_count(reason.as_mut_ptr(), Reason::SIZE) };
        NonNull::new(handle).map(|handle| Self(Some(handle))).ok_or_else(|| reason.into_error())
    }

    fn end(mut self) -> Result<u64, TchError> {
        self.0.take().map_or(Ok(0), ended)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take() {
            // The error cannot be reported here.
            let _ = ended(handle);
        }
    }
}

/// Consumes `handle`.
fn ended(handle: NonNull<Handle>) -> Result<u64, TchError> {
    let (mut multiplications, mut reason) = (0, Reason::default());
    // SAFETY: the shim has made the handle, which is released once; it lets no exception out and writes at most `SIZE` bytes of the reason.
    let counted = unsafe {
        longhaul_end_count(handle.as_ptr(), &raw mut multiplications, reason.as_mut_ptr(), Reason::SIZE)
    };
    if counted { Ok(multiplications) } else { Err(reason.into_error()) }
}

/// `longhaul_count`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn longhaul_begin_count(reason: *mut c_char, reason_size: usize) -> *mut Handle;
    fn longhaul_end_count(
        count: *mut Handle,
        multiplications: *mut u64,
        reason: *mut c_char,
        reason_size: usize,
    ) -> bool;
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn products_are_counted_by_their_sizes_forwards_and_backwards() {
        let ones = |sizes: &[i64]| Tensor::ones(sizes, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (x, w, b) = (ones(&[2, 50, 30]), ones(&[40, 30]), ones(&[40]));
        for bias in [None, Some(&b)] {
            let (y, counted) = count_multiplications(|| x.f_linear(&w, bias)).unwrap();
            assert_eq!(counted, 100 * 30 * 40);
            let loss = y.square().sum(Kind::Float);
            let backward = || Tensor::f_run_backward(&[&loss], &[&x, &w], false, false);
            assert_eq!(count_multiplications(backward).unwrap().1, 2 * 100 * 30 * 40);
        }
        assert!(count_multiplications(|| x.f_linear::<Tensor>(&x, None)).is_err());
        assert_eq!(count_multiplications(|| Ok(())).unwrap().1, 0);
    }
}
