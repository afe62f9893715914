//! The C allocator that libtorch's CPU tensors come from.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_int;

/// Free memory at the end of the heap that a process keeps, at most, and the size from which an allocation is given back to the system when
/// it is freed. Smaller ones that are freed below one still in use stay with the process, whatever they add up to.
const KEPT_BYTES: c_int = 1 << 30;

/// Lets the process keep freed memory for the next step, as libtorch does on GPUs. A step allocates the same activations and
/// gradients as the one before; given back to the system in between, every page of them is a fault and is cleared anew,
/// which makes a step of a small model 3 to 6 % longer. To be called before there are threads; does nothing without glibc.
pub fn keep_freed_memory() {
    // SAFETY: it takes a number and changes settings of the allocator. glibc's setters take the arena's lock; that they are not documented
    // as safe beside other threads is why this is called first.
    unsafe { longhaul_keep_freed_memory(KEPT_BYTES) }
}

unsafe extern "C" {
    fn longhaul_keep_freed_memory(bytes: c_int);
}
