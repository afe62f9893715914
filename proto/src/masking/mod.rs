//! Secure aggregation: contributions that reveal only their sum.
//!
//! Each site encodes its update as integers modulo 2³² ([`FixedPoint`]). For each other site it adds a stream
//! shared with that site ([`PairSecret`]), which the other site subtracts. A single contribution is noise; in
//! the sum over all sites the noise cancels (Bonawitz et al. 2017, "Practical secure aggregation for
//! privacy-preserving machine learning", without their recovery from dropouts: the sum is then lost).
//! `docs/masking.md` describes the threat model.

mod fixed_point;
mod frame;
mod pair;

pub use fixed_point::FixedPoint;
pub use frame::{MaskedFrameError, add_masked, seal};
pub use pair::{FrameKey, MASK_SECRET_BYTES, NoRandomness, PairSecret};
