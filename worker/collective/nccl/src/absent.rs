//! Replaces NCCL's communicator in builds without the feature `nccl`: joining always fails.

use std::convert::Infallible;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use longhaul_collective::NcclError;
use longhaul_collective::beside::Limit;

/// Bytes of a communicator's id.
pub(super) const ID_BYTES: usize = 128;

/// Uninhabited.
pub(super) struct NcclLibrary {
    never: Infallible,
}

/// Uninhabited.
pub(super) struct Communicator {
    never: Infallible,
}

/// Uninhabited.
pub(super) struct Context {
    never: Infallible,
}

/// Always fails.
pub(super) fn context(_: usize) -> Result<Arc<Context>, NcclError> {
    Err(NcclError::NotBuilt)
}

pub(super) fn free_bytes(context: &Context) -> Result<u64, NcclError> {
    match context.never {}
}

impl NcclLibrary {
    /// Always fails.
    pub fn get() -> Result<&'static Self, NcclError> {
        Err(NcclError::NotBuilt)
    }
}

impl Communicator {
    pub fn new_id(nccl: &NcclLibrary) -> Result<[u8; ID_BYTES], NcclError> {
        match nccl.never {}
    }

    pub fn join(
        nccl: &'static NcclLibrary,
        _: Arc<Context>,
        _: &[u8; ID_BYTES],
        _: (usize, usize),
        _: Limit,
    ) -> Result<Self, NcclError> {
        match nccl.never {}
    }

    /// # Safety
    /// Nothing is done.
    pub unsafe fn reduce(&mut self, _: *mut c_void, _: &[Range<usize>], _: Limit) -> Result<(), NcclError> {
        match self.never {}
    }

    /// # Safety
    /// Nothing is done.
    pub unsafe fn gather(&mut self, _: *mut c_void, _: &[Range<usize>], _: Limit) -> Result<(), NcclError> {
        match self.never {}
    }

    pub fn drain_device(&self) -> Result<(), NcclError> {
        match self.never {}
    }
}
