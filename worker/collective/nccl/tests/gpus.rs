//! Reduction between GPUs: the suite of all implementations, and the errors without GPUs.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

#[path = "../../tests/ring/rig.rs"]
mod rig;
#[path = "../../tests/ring/suite.rs"]
#[macro_use]
mod suite;

use longhaul_collective::{Collective, CollectiveError, NcclError};
use longhaul_nccl::{NcclCollective, NcclReach};
use tch::{Cuda, Device};

use rig::ring;

/// One GPU for each member.
struct Nccl;

impl suite::Site for Nccl {
    type Member = NcclCollective;

    fn members(&self, size: usize) -> Result<Vec<Self::Member>, String> {
        let gpus = Cuda::device_count();
        if gpus < size as i64 {
            return Err(format!("libtorch sees {gpus} GPUs"));
        }
        Ok(rig::each(ring(size), |ring| {
            let device = Device::Cuda(ring.rank());
            NcclCollective::join(ring, device, NcclReach::OneMachine).unwrap()
        }))
    }

    const STATED_ORDER: bool = false;
}

suite!(over_nccl, Nccl);

/// The group then computes over its ring, as all of its members know.
#[test]
fn members_of_which_one_has_no_gpu_learn_that_nccl_cannot_serve_them() {
    let absent = Device::Cuda(usize::try_from(Cuda::device_count()).unwrap());
    let can = rig::each(ring(2), |mut ring| {
        let device = if ring.rank() == 0 { absent } else { Device::Cuda(0) };
        let can = NcclCollective::can_serve(&mut ring, device).unwrap();
        ring.barrier().unwrap();
        can
    });
    assert_eq!(can, [false, false]);
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_for_all_and_no_panic() {
    let absent = Device::Cuda(usize::try_from(Cuda::device_count()).unwrap());
    let errors = rig::each(ring(2), |mut ring| match ring.rank() {
        0 => NcclCollective::join(ring, absent, NcclReach::OneMachine).err().unwrap(),
        _ => ring.barrier().unwrap_err(),
    });
    assert!(matches!(errors[0], CollectiveError::Nccl(NcclError::NoGpu { .. })), "{}", errors[0]);
    assert!(matches!(errors[1], CollectiveError::PeerLost { .. }), "{}", errors[1]);
}
