//! The crate by its public interface: one binary, as each is linked with all that the crate needs.

#![allow(
    clippy::unwrap_used,
    reason = "this is all test code, beyond the functions that are marked as tests"
)]

mod bulk;
mod codec;
mod codec_allocations;
mod congestion;
mod identity;
mod loopback;
#[cfg(feature = "otel")]
mod otel;
mod outages;
mod round_sim;
#[cfg(feature = "object-storage")]
mod s3;
mod simulated_path;
