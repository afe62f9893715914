//! Reduction within a site, by `docs/collective.md`: one suite for all implementations, and what goes wrong in a ring.

mod failures;
mod processes;
mod rig;
mod suite;

use longhaul_worker::collective::{
    Collective, CollectiveError, NcclCollective, NcclError, NcclReach, RingCollective,
};
use tch::{Cuda, Device};

/// So many members, ready to join one another.
fn seats(size: usize) -> Vec<rig::Seat> {
    rig::seats_and_credentials(size).0
}

/// So many members that have joined.
fn ring(size: usize) -> Vec<RingCollective> {
    rig::each(seats(size), |seat| seat.join().unwrap())
}

/// Every test of the suite, for one implementation.
macro_rules! suite {
    ($name:ident, $site:expr, [$($test:ident),+ $(,)?]) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { suite::$test(&$site); })+
        }
    };
    ($name:ident, $site:expr) => {
        suite!($name, $site, [
            all_reduce_gives_everyone_the_same_and_right_bits,
            reduce_scatter_then_gather_gives_each_range_to_its_member_then_to_all,
            broadcast_hands_bytes_of_any_length_round,
            an_exchange_tells_everyone_the_words_of_all_in_order_of_rank,
            lengths_that_differ_are_an_error_for_all_and_the_end,
            a_mean_without_samples_and_a_broadcast_that_is_too_long_fail_for_all,
        ]);
    };
}

struct Ring;

impl suite::Site for Ring {
    type Member = RingCollective;

    fn members(&self, size: usize) -> Result<Vec<Self::Member>, String> {
        Ok(ring(size))
    }

    const STATED_ORDER: bool = true;
}

suite!(over_tcp, Ring);

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

/// A group computes over its ring then, as all of its members know that they have to.
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
