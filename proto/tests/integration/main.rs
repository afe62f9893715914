//! Tests of the public interface, in one binary, as each binary links all dependencies of the crate.

#![allow(clippy::unwrap_used, reason = "all of this is test code, including functions not marked as tests")]

mod bulk;
mod codec;
mod codec_allocations;
mod congestion;
mod identity;
mod loopback;
#[cfg(feature = "otel")]
mod otel;
mod outages;
#[cfg(feature = "object-storage")]
mod s3;
mod simulated_path;
