//! Sums over a tensor group within forward and backward passes (Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053), through the shim in
//! `native/tensor_group.cpp`. `docs/tensor.md` is the design.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_common::model::Shard;
use longhaul_proto::little_endian::of_f32;
use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::Reason;
use longhaul_collective::{Collective, CollectiveError, Reduction, Word};

/// Longest wait of members for one another, as in a paused run: a month. Connections show ended processes and lost machines, and the coordinator other
/// failures.
pub const MEMBERS_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Values sent at a time: 16 MiB, which bounds a call's memory and time.
const HANDED_ON_VALUES: usize = 1 << 22;

/// A member's place in a tensor group. All members compute with shares of the same model, and make the same calls in the same order.
pub struct TensorGroup {
    handle: NonNull<Handle>,
    members: Arc<Members>,
}

// SAFETY: the shim counts its references atomically, and they lead to `Members`, which any thread may use.
unsafe impl Send for TensorGroup {}
// SAFETY: as above; nothing is changed through the handle.
unsafe impl Sync for TensorGroup {}

struct Members {
    collective: Mutex<Box<dyn Collective>>,
    /// Failure of a sum, until taken.
    failure: Mutex<Option<CollectiveError>>,
}

impl TensorGroup {
    /// Creates the member with the collective's rank.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(collective: Box<dyn Collective>) -> Result<Self, TchError> {
        let members = Arc::new(Members { collective: Mutex::new(collective), failure: Mutex::default() });
        let context = Arc::into_raw(Arc::clone(&members)).cast_mut().cast();
        let mut reason = Reason::default();
        // SAFETY: both functions take the context with its true type; the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let handle = unsafe { longhaul_new_group(context, sum, release, reason.as_mut_ptr(), Reason::SIZE) };
        let Some(handle) = NonNull::new(handle) else {
            release(context);
            return Err(reason.into_error());
        };
        Ok(Self { handle, members })
    }

    /// Reports whether group and rank fit this share of a model.
    pub(crate) fn is_of(&self, shard: Shard) -> bool {
        let collective = self.members.collective();
        (collective.size(), collective.rank()) == (shard.ways() as usize, shard.index() as usize)
    }

    /// Exchanges a word with all members, and returns the words by index.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub(crate) fn exchange(&self, word: Word) -> Result<Vec<Word>, CollectiveError> {
        self.members.collective().exchange(word, MEMBERS_MAX)
    }

    /// Replaces the values of all members, of equal number, by those of the first.
    ///
    /// # Errors
    /// [`CollectiveError`]; the values are undefined then.
    pub(crate) fn hand_on(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let mut collective = self.members.collective();
        let is_first = collective.rank() == 0;
        for part in values.chunks_mut(HANDED_ON_VALUES) {
            let mut bytes = Vec::new();
            if is_first {
                bytes.extend_from_slice(of_f32(part));
            }
            collective.broadcast(0, &mut bytes, size_of_val(part))?;
            let words = bytes.as_chunks().0.iter();
            part.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_le_bytes(*word));
        }
        Ok(())
    }

    /// Takes the failure of a sum since the last call, if any.
    pub(crate) fn take_failure(&self) -> Option<CollectiveError> {
        self.members.failure().take()
    }

    /// Returns x (f32, of any shape), as input of products divided by columns: its gradient becomes the sum over all members. "f" in the paper.
    ///
    /// # Errors
    /// libtorch fails. If the sum fails, so does the backward pass, and [`Self::take_failure`] returns the cause.
    pub(super) fn enter(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let mut reason = Reason::default();
        // SAFETY: tensor and handle live; the shim lets no exception out and writes at most `SIZE` bytes of the reason.
        let entered = unsafe {
            longhaul_enter_group(self.handle.as_ptr(), x.as_ptr(), reason.as_mut_ptr(), Reason::SIZE)
        };
        owned(entered).ok_or_else(|| reason.into_error())
    }

    /// Returns the sum over all members of x (f32, of any shape), the output of a product divided by rows. "g" in the paper.
    ///
    /// # Errors
    /// libtorch fails, or the sum does: then [`Self::take_failure`] returns the cause.
    pub(super) fn leave(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let mut reason = Reason::default();
        // SAFETY: as above.
        let left = unsafe {
            longhaul_leave_group(self.handle.as_ptr(), x.as_ptr(), reason.as_mut_ptr(), Reason::SIZE)
        };
        owned(left).ok_or_else(|| reason.into_error())
    }
}

impl Drop for TensorGroup {
    fn drop(&mut self) {
        // SAFETY: it was made by the shim, and is freed once. Remaining graphs own everything they need.
        unsafe { longhaul_free_group(self.handle.as_ptr()) }
    }
}

impl fmt::Debug for TensorGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorGroup").finish_non_exhaustive()
    }
}

impl Members {
    /// One pass computes at a time, and a failed collective reports it itself.
    fn collective(&self) -> MutexGuard<'_, Box<dyn Collective>> {
        self.collective.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<CollectiveError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called by the shim. A panic in here ends the process, because it cannot cross C++.
extern "C" fn sum(context: *mut c_void, values: *mut f32, count: usize) -> bool {
    // SAFETY: `TensorGroup::new` has passed this context, which lives until `release` is called.
    let members = unsafe { &*context.cast::<Members>() };
    let values = match count {
        0 => &mut [],
        // SAFETY: the shim's values are its own, `count` of them, and valid during the call.
        _ => unsafe { std::slice::from_raw_parts_mut(values, count) },
    };
    let summed = members.collective().all_reduce(values, Reduction::Sum);
    let Err(error) = summed else { return true };
    // Later failures only repeat the first one.
    members.failure().get_or_insert(error);
    false
}

/// Called by the shim, once.
extern "C" fn release(context: *mut c_void) {
    // SAFETY: it comes from `Arc::into_raw` in `TensorGroup::new`, and is released once.
    drop(unsafe { Arc::from_raw(context.cast_const().cast::<Members>()) });
}

/// Takes over a tensor made by the shim, if any.
fn owned(tensor: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: the shim transfers tensors that it has made with `new`.
    (!tensor.is_null()).then(|| unsafe { Tensor::from_ptr(tensor) })
}

/// `longhaul_group`.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

type Sum = extern "C" fn(context: *mut c_void, values: *mut f32, count: usize) -> bool;
type Release = extern "C" fn(context: *mut c_void);

unsafe extern "C" {
    fn longhaul_new_group(
        context: *mut c_void,
        sum: Sum,
        release: Release,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut Handle;
    fn longhaul_free_group(group: *mut Handle);
    fn longhaul_enter_group(
        group: *const Handle,
        x: *const C_tensor,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
    fn longhaul_leave_group(
        group: *const Handle,
        x: *const C_tensor,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Weak;

    use tch::Kind;

    use super::*;
    use crate::testing::test_device;

    /// One of two members with the same values.
    struct Alike(#[allow(dead_code, reason = "shows whether this still exists")] Arc<()>);

    impl Collective for Alike {
        fn rank(&self) -> usize {
            1
        }

        fn size(&self) -> usize {
            2
        }

        fn all_reduce(&mut self, values: &mut [f32], _: Reduction) -> Result<u64, CollectiveError> {
            if values.is_empty() {
                return Err(CollectiveError::NoSamples);
            }
            values.iter_mut().for_each(|value| *value *= 2.0);
            Ok(0)
        }

        fn exchange(&mut self, word: Word, _: Duration) -> Result<Vec<Word>, CollectiveError> {
            Ok(vec![word; 2])
        }

        fn reduce_scatter(
            &mut self,
            _: &mut [f32],
            _: &[Range<usize>],
            _: Reduction,
        ) -> Result<u64, CollectiveError> {
            Err(CollectiveError::Stopped)
        }

        fn all_gather(&mut self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CollectiveError> {
            Err(CollectiveError::Stopped)
        }

        fn broadcast(&mut self, _: usize, _: &mut Vec<u8>, _: usize) -> Result<(), CollectiveError> {
            Err(CollectiveError::Stopped)
        }

        fn barrier(&mut self) -> Result<(), CollectiveError> {
            Ok(())
        }
    }

    fn group() -> (TensorGroup, Weak<()>) {
        let there = Arc::new(());
        let weak = Arc::downgrade(&there);
        (TensorGroup::new(Box::new(Alike(there))).unwrap(), weak)
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.f_flatten(0, -1).unwrap()).unwrap()
    }

    #[test]
    fn one_end_sums_backwards_and_the_other_one_forwards() {
        let (group, _) = group();
        let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0])
            .view([2, 2])
            .to_device(test_device())
            .set_requires_grad(true);
        // A part of another tensor, in another order than in memory.
        let inner = x.transpose(0, 1).narrow(0, 1, 1); // [1, 2]
        let entered = group.enter(&inner).unwrap();
        assert_eq!(values(&entered), [2.0, 4.0]);
        let left = group.leave(&entered.square()).unwrap();
        assert_eq!(values(&left), [8.0, 32.0]);
        assert_eq!(values(&inner), [2.0, 4.0], "a copy is summed");
        let gradient = Tensor::run_backward(&[left.sum(Kind::Float)], &[&x], false, false).remove(0);
        assert_eq!(values(&gradient), [0.0, 8.0, 0.0, 16.0]);
    }

    #[test]
    fn a_graph_keeps_the_members_and_the_last_one_to_need_them_lets_them_go() {
        let (group, there) = group();
        let x = Tensor::ones([2], (Kind::Float, test_device())).set_requires_grad(true);
        let entered = group.enter(&x).unwrap();
        drop(group);
        assert!(there.upgrade().is_some());
        let gradient = Tensor::run_backward(&[entered.sum(Kind::Float)], &[&x], false, false).remove(0);
        assert_eq!(values(&gradient), [2.0, 2.0]);
        drop(entered);
        assert!(there.upgrade().is_none());
    }

    #[test]
    fn what_cannot_be_summed_is_an_error_and_says_why() {
        let (group, _) = group();
        let halves = Tensor::ones([2], (Kind::BFloat16, test_device()));
        assert!(group.leave(&halves).unwrap_err().to_string().contains("32-bit floats"));
        assert!(group.take_failure().is_none());
        let nothing = Tensor::ones([0], (Kind::Float, test_device()));
        assert!(group.leave(&nothing).is_err());
        assert!(matches!(group.take_failure(), Some(CollectiveError::NoSamples)));
        assert!(group.take_failure().is_none());
    }
}
