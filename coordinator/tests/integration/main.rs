//! The coordinator as a process, and the crate by its public interface: one binary, as each is linked with all that the crate needs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod browser;
#[cfg(feature = "object-storage")]
mod checkpoints;
mod command_line;
mod corpora;
mod dashboard;
mod deploy;
mod mlflow;
mod operate;
#[cfg(feature = "otel")]
mod otel;
mod running;
mod tensorboard;
mod workers;

/// The targets of `fuzz` name the crate by which libFuzzer calls them. Here it is this one, in which `corpora` makes each a function.
extern crate self as libfuzzer_sys;
