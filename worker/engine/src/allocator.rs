//! The C allocator of libtorch's CPU tensors.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_int;

/// Most free memory kept at the end of the heap, and the least size of an allocation that returns to the system on release. Smaller ones released below one
/// still in use always stay with the process.
const KEPT_BYTES: c_int = 1 << 30;

/// Makes the process keep released memory for the next step, as libtorch does on GPUs. Each step allocates the same tensors; otherwise every page of them
/// faults and is cleared anew, which costs a small model 3 to 6 % per step. Must be called before threads exist; does nothing without glibc.
pub fn keep_freed_memory() {
    // SAFETY: it takes a number and changes settings of the allocator. glibc's setters take the arena's lock, but are not documented as thread-safe; hence
    // the call before threads exist.
    unsafe { longhaul_keep_freed_memory(KEPT_BYTES) }
}

unsafe extern "C" {
    fn longhaul_keep_freed_memory(bytes: c_int);
}
