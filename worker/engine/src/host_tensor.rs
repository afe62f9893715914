//! Tensors in host memory, made from the host's values.
#![allow(unsafe_code, reason = "writes to libtorch's memory")]

use tch::kind::Element;
use tch::{Device, TchError, Tensor};

/// Copies these values once into a tensor `[values]`, on this thread. libtorch itself first fills it with zeros, beyond 32,768 values by a pool of threads
/// per caller, whose spinning takes cores from computation.
///
/// # Errors
/// libtorch has no memory.
pub(crate) fn host_tensor<T: Element + Copy>(values: &[T]) -> Result<Tensor, TchError> {
    let tensor = Tensor::f_empty([values.len() as i64], (T::KIND, Device::Cpu))?;
    if !values.is_empty() {
        // SAFETY: the tensor is contiguous, and was just made with as many elements of the same size, as `Element` promises; no other code has it yet.
        unsafe { values.as_ptr().copy_to_nonoverlapping(tensor.data_ptr().cast(), values.len()) };
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_the_values_however_many_there_are() {
        for count in [0, 1, 100_000] {
            let values: Vec<i64> = (0..count).map(|value| value * 3 - 7).collect();
            let tensor = host_tensor(&values).unwrap();
            assert_eq!((tensor.size(), tensor.kind()), (vec![count], tch::Kind::Int64));
            assert_eq!(Vec::<i64>::try_from(&tensor).unwrap(), values);
        }
        let bytes = host_tensor(&[1_u8, 0, 255]).unwrap();
        assert!(bytes.equal(&Tensor::from_slice(&[1_u8, 0, 255])));
    }
}
