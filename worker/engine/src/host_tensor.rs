//! Tensors in host memory, made from the host's values.
#![allow(unsafe_code, reason = "writes to libtorch's memory")]

use longhaul_proto::little_endian::of_f32;
use tch::kind::Element;
use tch::{Device, Kind, TchError, Tensor};

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

/// A tensor `[values]` in host memory that is written piece by piece, without zeros before.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    tensor: Tensor,
    bytes: usize,
}

impl HostBuffer {
    /// Takes memory.
    ///
    /// # Errors
    /// libtorch has none.
    pub fn new(values: usize, kind: Kind) -> Result<Self, TchError> {
        let tensor = Tensor::f_empty([values as i64], (kind, Device::Cpu))?;
        Ok(Self { tensor, bytes: values * kind.elt_size_in_bytes() })
    }

    /// Writes bytes of values, as they are in memory, from the byte `start` on.
    ///
    /// # Errors
    /// There is no place for them.
    pub fn write(&mut self, start: usize, bytes: &[u8]) -> Result<(), TchError> {
        if start.checked_add(bytes.len()).is_none_or(|end| end > self.bytes) {
            let (len, all) = (bytes.len(), self.bytes);
            return Err(TchError::Shape(format!("{len} bytes from {start} on do not fit a tensor of {all}")));
        }
        // SAFETY: the tensor is contiguous, has as many bytes, and no other code has it yet; any bytes are values of its kinds.
        unsafe {
            let into = self.tensor.data_ptr().cast::<u8>().add(start);
            bytes.as_ptr().copy_to_nonoverlapping(into, bytes.len());
        }
        Ok(())
    }

    /// Writes f32 values from the value `start` on.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_f32(&mut self, start: usize, values: &[f32]) -> Result<(), TchError> {
        self.write(size_of::<f32>() * start, of_f32(values))
    }

    /// Returns the tensor. Values that were not written are any.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_has_the_values_however_many_there_are() {
        for count in [0, 1, 100_000] {
            let values: Vec<i64> = (0..count).map(|value| value * 3 - 7).collect();
            let tensor = host_tensor(&values).unwrap();
            assert_eq!((tensor.size(), tensor.kind()), (vec![count], Kind::Int64));
            assert_eq!(Vec::<i64>::try_from(&tensor).unwrap(), values);
        }
        let bytes = host_tensor(&[1_u8, 0, 255]).unwrap();
        assert!(bytes.equal(&Tensor::from_slice(&[1_u8, 0, 255])));
    }

    #[test]
    fn a_buffer_takes_bytes_within_its_bounds() {
        let mut buffer = HostBuffer::new(3, Kind::BFloat16).unwrap();
        buffer.write(4, &[0x80, 0x3f]).unwrap();
        buffer.write(0, &[0x00, 0x40, 0x00, 0xc0]).unwrap();
        for (start, bytes) in [(5, 2), (0, 7), (usize::MAX, 1)] {
            assert!(buffer.write(start, &[0; 8][..bytes]).is_err(), "{start}");
        }
        let values = buffer.into_tensor().to_kind(Kind::Float);
        assert_eq!(Vec::<f32>::try_from(&values).unwrap(), [2.0, -2.0, 1.0]);
    }
}
