use std::time::Duration;

/// Failure of the reduction between GPUs.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NcclError {
    /// NCCL cannot serve the device.
    #[error("NCCL serves CUDA devices that libtorch sees, not {device}: libtorch sees {gpus} GPUs here")]
    NoGpu {
        /// Requested device.
        device: String,
        /// Number of GPUs.
        gpus: i64,
    },
    /// This build supports neither.
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
        /// The loader's error for each name.
        tried: String,
    },
    /// NCCL is too old.
    #[error("the NCCL library {library} lacks {function}: version 2.22 or later is needed")]
    NoFunction {
        /// Library.
        library: String,
        /// Missing function.
        function: &'static str,
    },
    /// The machine cannot be identified.
    #[error("read {path} to identify the machine: {reason}")]
    NoMachine {
        /// File.
        path: &'static str,
        /// Cause.
        reason: String,
    },
    /// Unsuitable values for NCCL.
    #[error("values to be reduced are contiguous f32 in the memory of {device}, not {found}")]
    Tensor {
        /// The collective's device.
        device: String,
        /// Given values.
        found: String,
    },
    /// NCCL failed.
    #[error("{what}: NCCL: {reason}. Set NCCL_DEBUG=WARN for details; a member may have left")]
    Failed {
        /// Operation.
        what: &'static str,
        /// NCCL's message.
        reason: String,
    },
    /// CUDA failed.
    #[error("{what}: CUDA: {reason}")]
    Cuda {
        /// Operation.
        what: &'static str,
        /// CUDA's message.
        reason: String,
    },
    /// libtorch failed.
    #[error("{what}: libtorch: {reason}")]
    Torch {
        /// Operation.
        what: &'static str,
        /// libtorch's message.
        reason: String,
    },
    /// NCCL did not finish in time.
    #[error(
        "{what}: not done after {} s. NCCL does not report the member that it waits for; check which one is stopped, and join again \
         without it", waited.as_secs_f64()
    )]
    TimedOut {
        /// Operation.
        what: &'static str,
        /// Time waited.
        waited: Duration,
    },
}
