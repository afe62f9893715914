//! libtorch's fused AdamW, through the shim in `native/fused_adamw.cpp`: tch does not offer it.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::{Reason, pointers};

/// Tensors of one update, in corresponding order: contiguous, f32, each with the shape and device of its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateTensors<'a> {
    /// Changed in place, outside autograd's graph.
    pub parameters: &'a [Tensor],
    /// Divided in place, with a divisor.
    pub gradients: &'a [Tensor],
    /// First moments, changed in place.
    pub first: &'a [Tensor],
    /// Second moments, changed in place.
    pub second: &'a [Tensor],
}

impl<'a> UpdateTensors<'a> {
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let lists = [self.parameters, self.gradients, self.first, self.second];
        let halves = lists.map(|list| list.split_at(at.min(list.len())));
        let of = |[parameters, gradients, first, second]: [&'a [Tensor]; 4]| Self {
            parameters,
            gradients,
            first,
            second,
        };
        (of(halves.map(|(before, _)| before)), of(halves.map(|(_, after)| after)))
    }
}

/// The numbers of one update. The tensors have one value and are on the device of the parameters, so that no wait is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateFactors<'a> {
    /// Number of this update, from 1.
    pub step: &'a Tensor,
    /// Divisor of the gradient.
    pub gradient_divisor: Option<&'a Tensor>,
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f64,
    pub epsilon: f64,
}

/// Makes one update with decoupled weight decay (Loshchilov & Hutter 2019) by the kernel of PyTorch's `torch.optim.AdamW(fused=True)`: every value crosses
/// memory once.
///
/// # Errors
/// The tensors are not as described; or libtorch fails.
pub(super) fn fused_adamw(tensors: UpdateTensors<'_>, factors: UpdateFactors<'_>) -> Result<(), TchError> {
    let lists = [tensors.parameters, tensors.gradients, tensors.first, tensors.second].map(pointers);
    let [parameters, gradients, first, second] = &lists;
    if lists.iter().any(|list| list.len() != parameters.len()) {
        let lengths = lists.each_ref().map(Vec::len);
        return Err(TchError::Shape(format!("AdamW needs lists of equal length, not {lengths:?}")));
    }
    let call = Call {
        parameters: parameters.as_ptr(),
        gradients: gradients.as_ptr(),
        first: first.as_ptr(),
        second: second.as_ptr(),
        count: parameters.len(),
        step: factors.step.as_ptr(),
        gradient_divisor: factors.gradient_divisor.map_or(std::ptr::null(), Tensor::as_ptr),
        learning_rate: factors.learning_rate,
        beta1: factors.beta1,
        beta2: factors.beta2,
        weight_decay: factors.weight_decay,
        epsilon: factors.epsilon,
    };
    let mut reason = Reason::default();
    // SAFETY: every pointer is to a tensor that this function borrows, and each list has `count` of them. The shim checks shapes, kinds and layout, lets no
    // exception out, keeps nothing, and writes at most `size` bytes of the reason.
    let updated = unsafe { longhaul_fused_adamw(&raw const call, reason.as_mut_ptr(), Reason::SIZE) };
    if updated { Ok(()) } else { Err(reason.into_error()) }
}

/// Same layout as `longhaul_fused_adamw_call`.
#[repr(C)]
struct Call {
    parameters: *const *const C_tensor,
    gradients: *const *const C_tensor,
    first: *const *const C_tensor,
    second: *const *const C_tensor,
    count: usize,
    step: *const C_tensor,
    gradient_divisor: *const C_tensor,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    epsilon: f64,
}

unsafe extern "C" {
    fn longhaul_fused_adamw(call: *const Call, reason: *mut c_char, reason_size: usize) -> bool;
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::testing::test_device;

    fn update(parameters: &Tensor, gradient: &Tensor) -> Result<(), TchError> {
        let (first, second) = (parameters.zeros_like(), parameters.zeros_like());
        let [parameters, gradients, first, second] =
            [parameters, gradient, &first, &second].map(|tensor| [tensor.shallow_clone()]);
        fused_adamw(
            UpdateTensors { parameters: &parameters, gradients: &gradients, first: &first, second: &second },
            UpdateFactors {
                step: &Tensor::from_slice(&[1f32]).to_device(test_device()),
                gradient_divisor: None,
                learning_rate: 0.1,
                beta1: 0.9,
                beta2: 0.95,
                weight_decay: 0.0,
                epsilon: 1e-8,
            },
        )
    }

    #[test]
    fn tensors_that_do_not_belong_together_are_refused_before_memory_is_touched() {
        let parameters = Tensor::zeros([4, 4], (Kind::Float, test_device()));
        let refused = |gradient: &Tensor, reason: &str| {
            let error = update(&parameters, gradient).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        refused(&Tensor::zeros([2], (Kind::Float, test_device())), "does not belong");
        refused(&parameters.to_kind(Kind::Double), "32-bit floats");
        refused(&Tensor::zeros([4, 8], (Kind::Float, test_device())).narrow(1, 0, 4), "contiguous");
        assert_eq!(parameters.abs().sum(Kind::Float).double_value(&[]), 0.0);
        update(&parameters, &parameters.ones_like()).unwrap();
        // The first update of AdamW is a step of the learning rate against the gradient's sign.
        assert!((parameters.double_value(&[3, 3]) + 0.1).abs() < 1e-6);
    }

    #[test]
    fn a_moment_that_fades_does_not_become_subnormal() {
        // Enough values for several threads. A GPU is as fast with subnormal numbers.
        let parameters = Tensor::ones([1 << 10, 1 << 10], (Kind::Float, Device::Cpu));
        let faded = parameters.full_like(f64::from(f32::MIN_POSITIVE));
        let lists = [&parameters, &parameters.zeros_like(), &faded, &parameters.ones_like()]
            .map(|tensor| [tensor.shallow_clone()]);
        let [parameters, gradients, first, second] = &lists;
        let factors = UpdateFactors {
            step: &Tensor::from_slice(&[1000f32]),
            gradient_divisor: None,
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            weight_decay: 0.0,
            epsilon: 1e-8,
        };
        fused_adamw(UpdateTensors { parameters, gradients, first, second }, factors).unwrap();
        let faded = Vec::<f32>::try_from(faded.flatten(0, -1)).unwrap();
        assert!(!faded.iter().any(|value| value.is_subnormal()), "{}", faded[0]);
        assert_eq!(second[0].min().double_value(&[]) as f32, 0.999, "normal numbers are as ever");
        // Subnormal numbers are enabled again elsewhere: half of it is no zero.
        let smallest = Tensor::ones([1 << 20], (Kind::Float, Device::Cpu)) * f64::from(f32::MIN_POSITIVE);
        assert_eq!((smallest * 0.5).count_nonzero(None::<i64>).int64_value(&[]), 1 << 20);
        assert!(std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5) > 0.0);
    }
}
