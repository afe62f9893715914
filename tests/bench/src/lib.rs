//! What benchmarks share: figures, training across an emulated link with the real binaries, and PyTorch beside it.
//!
//! Each benchmark is a program of this crate; `cargo xtask bench` builds and runs it. Those that need libtorch are behind the feature `torch`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "benchmarks tell how far they are")]

pub mod figures;
pub mod gpt;
pub mod processor_time;
pub mod pytorch;
#[cfg(feature = "torch")]
pub mod selected_step;
pub mod training;
