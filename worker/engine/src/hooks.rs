//! Gradients during back-propagation, through the shim in `native/gradient_hooks.cpp`: tch does not offer hooks.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::{Reason, pointers};

/// Hooks on parameters on the host.
#[derive(Debug)]
pub(super) struct GradientHooks(NonNull<Hooks>);

/// Receives the index of a parameter and its gradient, in the parameter's order.
pub(super) type Arrived<'a> = dyn FnMut(usize, &[f32]) + 'a;

// SAFETY: the hooks belong to no thread; only their owner calls them.
unsafe impl Send for GradientHooks {}

impl GradientHooks {
    /// Creates hooks for leaves of autograd's graph: contiguous, f32.
    ///
    /// # Errors
    /// A leaf is on another device or needs no gradient.
    pub fn new(parameters: &[Tensor]) -> Result<Self, TchError> {
        let list = pointers(parameters);
        let mut reason = Reason::default();
        // SAFETY: the list has `len` pointers to tensors; the shim registers hooks that own everything they use, lets no exception out, and writes at most
        // `SIZE` bytes of the reason.
        let hooks =
            unsafe { longhaul_hook_gradients(list.as_ptr(), list.len(), reason.as_mut_ptr(), Reason::SIZE) };
        NonNull::new(hooks).map(Self).ok_or_else(|| reason.into_error())
    }

    /// Runs `compute`, which back-propagates on this thread, and calls `arrived` once with each parameter's complete gradient. On a CPU, autograd runs on the
    /// calling thread.
    pub fn listen<R>(&mut self, mut arrived: &mut Arrived<'_>, compute: impl FnOnce() -> R) -> R {
        let context: *mut &mut Arrived<'_> = &raw mut arrived;
        // SAFETY: the hooks live; `context` does until `listening` is dropped.
        unsafe { longhaul_listen_to_gradients(self.0.as_ptr(), Some(forward), context.cast()) };
        let listening = Listening(self.0);
        let result = compute();
        drop(listening);
        result
    }
}

impl Drop for GradientHooks {
    fn drop(&mut self) {
        // SAFETY: they were made by the shim, and are freed once.
        unsafe { longhaul_free_gradient_hooks(self.0.as_ptr()) }
    }
}

/// Guard of an active listener.
struct Listening(NonNull<Hooks>);

impl Drop for Listening {
    fn drop(&mut self) {
        // SAFETY: the hooks outlive the borrow that this stands for.
        unsafe { longhaul_listen_to_gradients(self.0.as_ptr(), None, std::ptr::null_mut()) }
    }
}

/// Called by the shim. A panic in here ends the process, because it cannot cross C++.
extern "C" fn forward(context: *mut c_void, index: usize, values: *const f32, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: `listen` has passed this context, which lives and is not used elsewhere meanwhile; the shim's values are valid during the call.
    let (arrived, values) = unsafe {
        let arrived = &mut *context.cast::<&mut Arrived<'_>>();
        (arrived, std::slice::from_raw_parts(values, count))
    };
    arrived(index, values);
}

/// `longhaul_gradient_hooks`.
#[repr(C)]
struct Hooks {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn longhaul_hook_gradients(
        parameters: *const *const C_tensor,
        count: usize,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut Hooks;
    fn longhaul_listen_to_gradients(
        hooks: *mut Hooks,
        arrived: Option<extern "C" fn(*mut c_void, usize, *const f32, usize)>,
        context: *mut c_void,
    );
    fn longhaul_free_gradient_hooks(hooks: *mut Hooks);
}
