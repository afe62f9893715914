//! NCCL's entry points, from a library loaded at run time. cudarc has their types, but tries only `libnccl.so`, and panics if it is absent.
#![allow(unsafe_code, reason = "calls C")]

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::Library;

use super::NcclError;

/// NVIDIA's wheel has the first only, a development package the second too.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclResult_t` as a number, because a newer library may have more values than the binding.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 7;

/// The used functions of <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>.
pub(super) struct NcclLibrary {
    pub get_unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> Status,
    pub comm_init_rank_config:
        unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Status,
    pub comm_get_async_error: unsafe extern "C" fn(ncclComm_t, *mut Status) -> Status,
    pub comm_abort: unsafe extern "C" fn(ncclComm_t) -> Status,
    pub group_start: unsafe extern "C" fn() -> Status,
    pub group_end: unsafe extern "C" fn() -> Status,
    pub reduce: Reduce,
    pub broadcast: Broadcast,
    get_error_string: unsafe extern "C" fn(Status) -> *const c_char,
}

/// Source, target, count, type, operation, root.
type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    c_int,
    ncclComm_t,
    cudaStream_t,
) -> Status;

/// Source, target, count, type, root.
type Broadcast =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, cudaStream_t) -> Status;

impl NcclLibrary {
    /// Returns the library of this process, which is never unloaded.
    pub fn get() -> Result<&'static Self, NcclError> {
        static LIBRARY: OnceLock<Result<NcclLibrary, NcclError>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(&NAMES)).as_ref().map_err(Clone::clone)
    }

    fn open(names: &[&str]) -> Result<Self, NcclError> {
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: NCCL's initialisers set up its own state only. libtorch for CUDA has run them already.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Self::look_up(name, library),
                Err(error) => {
                    tried.push(error.source().map_or_else(|| error.to_string(), ToString::to_string))
                }
            }
        }
        Err(NcclError::NoLibrary { tried: tried.join("; ") })
    }

    fn look_up(name: &str, library: Library) -> Result<Self, NcclError> {
        // The functions are called as long as the process runs.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($function:literal) => {
                // SAFETY: the type is the field's, which is that of nccl.h for this function.
                *unsafe { library.get($function) }
                    .map_err(|_| NcclError::NoFunction { library: name.to_owned(), function: $function })?
            };
        }
        Ok(Self {
            get_unique_id: function!("ncclGetUniqueId"),
            comm_init_rank_config: function!("ncclCommInitRankConfig"),
            comm_get_async_error: function!("ncclCommGetAsyncError"),
            comm_abort: function!("ncclCommAbort"),
            group_start: function!("ncclGroupStart"),
            group_end: function!("ncclGroupEnd"),
            reduce: function!("ncclReduce"),
            broadcast: function!("ncclBroadcast"),
            get_error_string: function!("ncclGetErrorString"),
        })
    }

    pub fn failed(&self, what: &'static str, status: Status) -> NcclError {
        // SAFETY: it takes any number and returns a constant string, or null.
        let words = unsafe { (self.get_error_string)(status) };
        if words.is_null() {
            return NcclError::Failed { what, reason: format!("error {status}") };
        }
        // SAFETY: it is not null, ends with a zero, and is never freed.
        let words = unsafe { CStr::from_ptr(words) };
        NcclError::Failed { what, reason: words.to_string_lossy().into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_an_error_that_says_what_to_install() {
        let error = NcclLibrary::open(&["libno-such-nccl.so.2"]).err().unwrap().to_string();
        assert!(error.contains("libno-such-nccl.so.2") && error.contains("nvidia-nccl-cu13"), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_an_error_that_names_one() {
        let error = NcclLibrary::open(&["libno-such-nccl.so.2", "libc.so.6"]).err().unwrap().to_string();
        assert!(error.contains("libc.so.6 lacks ncclGetUniqueId"), "{error}");
    }

    #[test]
    fn where_nccl_is_installed_it_explains_its_errors() {
        match NcclLibrary::get() {
            // ncclInvalidArgument
            Ok(nccl) => assert!(nccl.failed("a test", 4).to_string().contains("invalid argument")),
            Err(error) => longhaul_tests::tools::skipped(&error.to_string()),
        }
    }
}
