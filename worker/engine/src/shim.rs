//! Common parts of all calls to the C++ in `native/`.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

/// Buffer for the shim's error message; longer ones are cut.
pub(crate) struct Reason([c_char; Self::SIZE]);

impl Reason {
    pub const SIZE: usize = 1024;

    pub fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }

    pub fn into_error(self) -> TchError {
        let bytes: Vec<u8> = self.0.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        TchError::Torch(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Default for Reason {
    fn default() -> Self {
        Self([0; Self::SIZE])
    }
}

/// Returns a list of tensors for the shim.
pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(Tensor::as_ptr).collect()
}
