#![allow(unsafe_code, reason = "calls C")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use longhaul_collective::NcclError;
use longhaul_collective::beside::{Limit, left};

pub(super) use super::library::NcclLibrary;
use super::library::{IN_PROGRESS, SUCCESS, Status};

/// Bytes of a communicator's id.
pub(super) const ID_BYTES: usize = 128;

/// `NCCL_CONFIG_INITIALIZER` of nccl.h 2.22: the structure's mark, its version, and "the library's choice".
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
const CONFIG_VERSION: c_uint = 2_22_03;
const CONFIG_UNDEFINED: c_int = c_int::MIN;

/// Interval of polling NCCL: short compared with a reduction (1 ms and more), long compared with a poll (1 µs).
const POLL_EVERY: Duration = Duration::from_micros(50);

/// A member's part of NCCL's communicator, on its own stream. Non-blocking: no call waits for another member.
pub(super) struct Communicator {
    nccl: &'static NcclLibrary,
    // Null if NCCL has made none.
    comm: ncclComm_t,
    // Holds the handle; NCCL may write it again until all members have joined.
    _slot: Box<UnsafeCell<ncclComm_t>>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    done: CudaEvent,
}

// SAFETY: NCCL's communicator may be used from any thread, by one at a time, which `&mut self` ensures; CUDA objects are bound to the calling thread before
// each use.
unsafe impl Send for Communicator {}

/// Returns the context of a device that libtorch works in too (the primary one).
pub(super) fn context(device: usize) -> Result<Arc<CudaContext>, NcclError> {
    // SAFETY: this opens the driver's library, whose initialisers do nothing before a request.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(NcclError::NoDriver);
    }
    CudaContext::new(device).map_err(cuda("open the device"))
}

/// Returns the free bytes of its memory.
pub(super) fn free_bytes(context: &CudaContext) -> Result<u64, NcclError> {
    let (free, _) = context.mem_get_info().map_err(cuda("ask for the device's memory"))?;
    Ok(free as u64)
}

fn cuda(what: &'static str) -> impl FnOnce(DriverError) -> NcclError {
    move |error| NcclError::Cuda { what, reason: error.to_string() }
}

impl Communicator {
    /// Creates an id for one member to distribute.
    pub fn new_id(nccl: &NcclLibrary) -> Result<[u8; ID_BYTES], NcclError> {
        let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
        // SAFETY: the call writes one id.
        match unsafe { (nccl.get_unique_id)(&raw mut id) } {
            SUCCESS => Ok(id.internal.map(|byte| byte as u8)),
            status => Err(nccl.failed("create an id for NCCL's communicator", status)),
        }
    }

    /// Joins; returns once all members have called it.
    pub fn join(
        nccl: &'static NcclLibrary,
        context: Arc<CudaContext>,
        id: &[u8; ID_BYTES],
        (rank, size): (usize, usize),
        limit: Limit,
    ) -> Result<Self, NcclError> {
        const WHAT: &str = "join NCCL's communicator";
        let stream = context.new_stream().map_err(cuda("create a stream for NCCL"))?;
        let done = context.new_event(None).map_err(cuda("create an event for NCCL"))?;
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: CONFIG_MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: CONFIG_UNDEFINED,
            minCTAs: CONFIG_UNDEFINED,
            maxCTAs: CONFIG_UNDEFINED,
            netName: std::ptr::null(),
            splitShare: CONFIG_UNDEFINED,
        };
        let id = ncclUniqueId { internal: id.map(|byte| byte as _) };
        // A site has fewer members than an int can count.
        let (rank, size) = (rank as c_int, size as c_int);
        context.bind_to_thread().map_err(cuda(WHAT))?;
        let slot = Box::new(UnsafeCell::new(std::ptr::null_mut()));
        // SAFETY: the call writes the handle into a slot that outlives the communicator, and reads the configuration before it returns.
        let status = unsafe { (nccl.comm_init_rank_config)(slot.get(), size, id, rank, &raw mut config) };
        // SAFETY: the first handle has been written, and any later one is the same.
        let comm = unsafe { slot.get().read_volatile() };
        let made = Self { nccl, comm, _slot: slot, context, stream, done };
        made.settle(WHAT, status, limit)?;
        Ok(made)
    }

    /// Reduces each range, by sums and in place, to the member at its index.
    ///
    /// # Safety
    /// `values` is the start of f32 values in this device's memory that contain all ranges. All other uses of them have ended, and they stay valid until this
    /// returns or, on failure, until the communicator is dropped.
    pub unsafe fn reduce(
        &mut self,
        values: *mut c_void,
        ranges: &[Range<usize>],
        limit: Limit,
    ) -> Result<(), NcclError> {
        let (nccl, comm, stream) = (self.nccl, self.comm, self.raw_stream());
        let sum = ncclRedOp_t::ncclSum as c_int;
        self.grouped("reduce over NCCL", limit, ranges, |root, range| {
            let part = values.wrapping_byte_add(range.start * size_of::<f32>());
            // SAFETY: the caller's promise covers the part; communicator and stream live as long as `self`.
            unsafe { (nccl.reduce)(part, part, range.len(), F32, sum, root, comm, stream) }
        })
    }

    /// Copies each range in place from the member at its index to all.
    ///
    /// # Safety
    /// As [`Self::reduce`].
    pub unsafe fn gather(
        &mut self,
        values: *mut c_void,
        ranges: &[Range<usize>],
        limit: Limit,
    ) -> Result<(), NcclError> {
        let (nccl, comm, stream) = (self.nccl, self.comm, self.raw_stream());
        self.grouped("gather over NCCL", limit, ranges, |root, range| {
            let part = values.wrapping_byte_add(range.start * size_of::<f32>());
            // SAFETY: as for a reduction.
            unsafe { (nccl.broadcast)(part, part, range.len(), F32, root, comm, stream) }
        })
    }

    /// Waits until all work queued on the device is done.
    pub fn drain_device(&self) -> Result<(), NcclError> {
        self.context.synchronize().map_err(cuda("wait for the device's work"))
    }

    /// Queues one NCCL operation for each non-empty range, as one group, and waits for all.
    fn grouped(
        &mut self,
        what: &'static str,
        limit: Limit,
        ranges: &[Range<usize>],
        operation: impl Fn(c_int, &Range<usize>) -> Status,
    ) -> Result<(), NcclError> {
        self.bind(what)?;
        // SAFETY: this begins a group of this thread, which is always ended below.
        let mut status = unsafe { (self.nccl.group_start)() };
        for (root, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            if status == SUCCESS || status == IN_PROGRESS {
                status = operation(root as c_int, range);
            }
        }
        // SAFETY: this ends the group begun above.
        let ended = unsafe { (self.nccl.group_end)() };
        self.settle(what, if status == SUCCESS || status == IN_PROGRESS { ended } else { status }, limit)?;
        self.done.record(&self.stream).map_err(cuda(what))?;
        while !self.done.try_is_complete().map_err(cuda(what))? {
            self.settle(what, self.state(), limit)?;
            pause(what, limit)?;
        }
        self.settle(what, self.state(), limit)
    }

    /// Waits for the library's background work.
    fn settle(&self, what: &'static str, mut status: Status, limit: Limit) -> Result<(), NcclError> {
        loop {
            match status {
                SUCCESS => return Ok(()),
                IN_PROGRESS => pause(what, limit)?,
                failed => return Err(self.nccl.failed(what, failed)),
            }
            status = self.state();
        }
    }

    fn state(&self) -> Status {
        let mut state = SUCCESS;
        // SAFETY: the handle is NCCL's, or null, which NCCL refuses; the call writes one number.
        match unsafe { (self.nccl.comm_get_async_error)(self.comm, &raw mut state) } {
            SUCCESS => state,
            failed => failed,
        }
    }

    fn bind(&self, what: &'static str) -> Result<(), NcclError> {
        self.context.bind_to_thread().map_err(cuda(what))
    }

    /// The driver's stream is the runtime's (CUDA runtime API, "interactions with the driver API").
    fn raw_stream(&self) -> cudaStream_t {
        self.stream.cu_stream().cast()
    }
}

const F32: c_int = ncclDataType_t::ncclFloat32 as c_int;

#[allow(
    clippy::disallowed_methods,
    reason = "NCCL and CUDA events send no notification; they have to be polled"
)]
fn pause(what: &'static str, limit: Limit) -> Result<(), NcclError> {
    if left(limit.until).is_zero() {
        return Err(NcclError::TimedOut { what, waited: limit.whole });
    }
    std::thread::sleep(POLL_EVERY);
    Ok(())
}

impl Drop for Communicator {
    /// Aborts in any state: an orderly end would wait for the others.
    fn drop(&mut self) {
        if !self.comm.is_null() && self.bind("leave NCCL's communicator").is_ok() {
            // SAFETY: the handle is NCCL's, and is not used any more.
            unsafe { (self.nccl.comm_abort)(self.comm) };
        }
    }
}
