use std::time::Duration;

/// Why there is no reduction between GPUs.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NcclError {
    /// The device is none that NCCL serves.
    #[error("NCCL serves CUDA devices that libtorch sees, not {device}: libtorch sees {gpus} GPUs here")]
    NoGpu {
        /// What was asked for.
        device: String,
        /// How many there are.
        gpus: i64,
    },
    /// This program has no means to speak with either.
    #[error(
        "this worker was built without CUDA's driver and NCCL: build it with `--features nccl` (`cargo build --release` has all)"
    )]
    NotBuilt,
    /// CUDA's driver is missing.
    #[error(
        "CUDA's driver library libcuda.so cannot be opened: install NVIDIA's driver, or use the ring over TCP"
    )]
    NoDriver,
    /// NCCL is missing.
    #[error(
        "NCCL cannot be opened ({tried}): install nvidia-nccl-cu13, see that LD_LIBRARY_PATH names the folder of \
         libnccl.so.2, or use the ring over TCP"
    )]
    NoLibrary {
        /// What the loader said of each name.
        tried: String,
    },
    /// NCCL is too old.
    #[error("the NCCL library {library} lacks {function}: version 2.22 or later is needed")]
    NoFunction {
        /// Which library.
        library: String,
        /// What it lacks.
        function: &'static str,
    },
    /// The kernel does not say which machine this is.
    #[error("read {path} to see whether members are on one machine: {reason}")]
    NoMachine {
        /// Which file.
        path: &'static str,
        /// Why not.
        reason: String,
    },
    /// Values that NCCL cannot be given.
    #[error("values to be reduced are contiguous f32 in the memory of {device}, not {found}")]
    Tensor {
        /// The collective's device.
        device: String,
        /// What was given.
        found: String,
    },
    /// NCCL failed.
    #[error("{what}: NCCL says: {reason}. NCCL_DEBUG=WARN prints more; a member may have gone")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// NCCL's words.
        reason: String,
    },
    /// CUDA failed.
    #[error("{what}: CUDA says: {reason}")]
    Cuda {
        /// What was tried.
        what: &'static str,
        /// CUDA's words.
        reason: String,
    },
    /// libtorch failed.
    #[error("{what}: libtorch says: {reason}")]
    Torch {
        /// What was tried.
        what: &'static str,
        /// libtorch's words.
        reason: String,
    },
    /// NCCL did not finish in time.
    #[error(
        "{what}: not done after {} s. NCCL does not say for whom it waits; see which member is stopped, and join again \
         without it", waited.as_secs_f64()
    )]
    TimedOut {
        /// What was tried.
        what: &'static str,
        /// For how long.
        waited: Duration,
    },
}
