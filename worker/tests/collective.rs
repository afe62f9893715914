//! Reduction within a site, by `docs/collective.md`: one suite for all implementations, and what goes wrong in a ring.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it skips")]

#[path = "collective/failures.rs"]
mod failures;
#[path = "collective/rig.rs"]
mod rig;
#[path = "collective/suite.rs"]
mod suite;

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
            lengths_that_differ_are_an_error_for_all_and_the_end,
            a_mean_without_samples_and_a_broadcast_that_is_too_long_fail_for_all,
        ]);
    };
}

struct Ring;

impl suite::Site for Ring {
    type Member = longhaul_worker::collective::RingCollective;

    fn members(&self, size: usize) -> Result<Vec<Self::Member>, String> {
        Ok(rig::ring(size))
    }

    const STATED_ORDER: bool = true;
}

suite!(ring, Ring);
