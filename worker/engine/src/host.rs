//! Transfers of values between the host's vectors and a device.

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tch::{Device, Kind, TchError, Tensor};

use crate::pinned::pinned;

/// Values copied at once: 4 MiB, which stay in a processor's cache between one copy and the next.
const WINDOW: usize = 1 << 20;

/// Parallel copying threads: one alone is slower than a GPU's link.
const LANES: usize = 4;

/// The link to a device. For a GPU it holds pinned memory: copies of other memory go through the driver's own, after an allocation for the whole copy.
#[derive(Debug)]
pub(super) struct HostLink {
    /// One for each lane; empty: the device is the CPU.
    windows: Vec<Tensor>,
    /// Values of each.
    window: usize,
}

impl HostLink {
    /// # Errors
    /// libtorch fails.
    pub fn new(device: Device) -> Result<Self, TchError> {
        let lanes = if device.is_cuda() { LANES } else { 0 };
        let window = |_| pinned(&Tensor::f_zeros([WINDOW as i64], (Kind::Float, Device::Cpu))?);
        Ok(Self { windows: (0..lanes).map(window).collect::<Result<_, _>>()?, window: WINDOW })
    }

    /// Copies all values of a tensor, in their order.
    ///
    /// # Errors
    /// `into` is too short; or libtorch fails.
    pub fn read(&self, tensor: &Tensor, into: &mut [f32]) -> Result<(), TchError> {
        if self.windows.is_empty() {
            return tensor.f_copy_data(into, tensor.numel());
        }
        let flat = tensor.f_flatten(0, -1)?; // [values]
        let (count, room) = (flat.numel(), into.len());
        let into =
            into.get_mut(..count).ok_or_else(|| TchError::Shape(format!("{count} values for {room}")))?;
        let lanes = self.lanes(&flat, into.chunks_mut(self.stripe(count)))?;
        let size = self.window;
        lanes.into_par_iter().try_for_each(|(window, flat, into)| {
            copy(into.len(), size, |at, len| {
                let mut window = window.f_narrow(0, 0, len as i64)?;
                window.f_copy_(&flat.f_narrow(0, at as i64, len as i64)?)?;
                window.f_copy_data(&mut into[at..at + len], len)
            })
        })
    }

    /// Copies into a vector, which is resized.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn read_all(&self, tensor: &Tensor, into: &mut Vec<f32>) -> Result<(), TchError> {
        into.resize(tensor.numel(), 0.0);
        self.read(tensor, into)
    }

    /// Returns a vector [values] on `device`.
    ///
    /// # Errors
    /// libtorch fails.
    pub fn write(&self, values: &[f32], device: Device) -> Result<Tensor, TchError> {
        if self.windows.is_empty() {
            return Tensor::f_from_slice(values)?.f_to_device(device);
        }
        let there = Tensor::f_empty([values.len() as i64], (Kind::Float, device))?;
        let lanes = self.lanes(&there, values.chunks(self.stripe(values.len())))?;
        let size = self.window;
        lanes.into_par_iter().try_for_each(|(window, there, values)| {
            copy(values.len(), size, |at, len| {
                let mut window = window.f_narrow(0, 0, len as i64)?;
                window.f_copy_(&Tensor::f_from_slice(&values[at..at + len])?)?;
                there.f_narrow(0, at as i64, len as i64)?.f_copy_(&window)
            })
        })?;
        Ok(there)
    }

    /// Returns the values per lane, so that a few values stay in one lane.
    fn stripe(&self, values: usize) -> usize {
        values.div_ceil(self.windows.len().max(1)).max(self.window)
    }

    /// Returns for each lane its window, its part of a tensor [values], and its part of the host's values.
    fn lanes<T>(
        &self,
        flat: &Tensor,
        parts: impl Iterator<Item = T>,
    ) -> Result<Vec<(Tensor, Tensor, T)>, TchError>
    where
        T: AsRef<[f32]>,
    {
        let mut start = 0;
        let lane = |(window, part): (&Tensor, T)| {
            let len = part.as_ref().len() as i64;
            let own = flat.f_narrow(0, start, len)?;
            start += len;
            Ok((window.shallow_clone(), own, part))
        };
        self.windows.iter().zip(parts).map(lane).collect()
    }
}

/// Calls `part` window by window, with start and length.
fn copy(
    values: usize,
    window: usize,
    mut part: impl FnMut(usize, usize) -> Result<(), TchError>,
) -> Result<(), TchError> {
    // Threads of the pool do not inherit the caller's setting.
    tch::no_grad(|| (0..values).step_by(window).try_for_each(|at| part(at, window.min(values - at))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_device;

    fn assert_copies(link: &HostLink, device: Device, counts: &[usize]) {
        for &count in counts {
            let values: Vec<f32> = (0..count).map(|at| at as f32 * 0.5 - 7.0).collect();
            let there = link.write(&values, device).unwrap();
            assert_eq!((there.device(), there.numel()), (device, count));
            let mut back = vec![1.0; 3];
            link.read_all(&there, &mut back).unwrap();
            assert!(back == values, "{count}");
        }
        let square = link.write(&[1.0, 2.0, 3.0, 4.0], device).unwrap().view([2, 2]);
        let mut back = [0.0; 6];
        link.read(&square, &mut back).unwrap();
        assert_eq!(back, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
        assert!(link.read(&square, &mut [0.0; 3]).is_err());
    }

    #[test]
    fn values_arrive_as_they_left_whatever_their_number() {
        let counts = [0, 1, WINDOW - 1, WINDOW, 2 * WINDOW + 3, 9 * WINDOW + 1];
        assert_copies(&HostLink::new(test_device()).unwrap(), test_device(), &counts);
    }

    /// Windows of a few values in memory that is not pinned.
    #[test]
    fn windows_and_lanes_leave_nothing_out_and_mix_nothing_up() {
        let windows = (0..3).map(|_| Tensor::zeros([5], (Kind::Float, Device::Cpu))).collect();
        let counts: Vec<usize> = (0..70).collect();
        assert_copies(&HostLink { windows, window: 5 }, Device::Cpu, &counts);
    }
}
