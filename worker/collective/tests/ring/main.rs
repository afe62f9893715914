//! Reduction in a ring, by `docs/collective.md`: the common suite, and failures.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod failures;
mod processes;
mod rig;
#[macro_use]
mod suite;

use longhaul_collective::RingCollective;

use rig::ring;

struct Ring;

impl suite::Site for Ring {
    type Member = RingCollective;

    fn members(&self, size: usize) -> Result<Vec<Self::Member>, String> {
        Ok(ring(size))
    }

    const STATED_ORDER: bool = true;
}

suite!(over_tcp, Ring);
