//! Secure aggregation: contributions of which only the sum can be read.
//!
//! Each site writes its update as integers modulo 2³² ([`FixedPoint`]) and adds to them a stream that it shares with each other site
//! ([`PairSecret`]), which that one subtracts: a contribution by itself is noise, and in the sum over all sites the noise is gone (Bonawitz
//! et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", without their recovery of the streams of those
//! who drop out: then there is no sum). `docs/masking.md` says who can learn what.

mod fixed_point;
mod frame;
mod pair;

pub use fixed_point::FixedPoint;
pub use frame::{MaskedFrameError, add_masked, seal};
pub use pair::{MASK_SECRET_BYTES, NoRandomness, PairSecret, Place};
