//! Runs of the real binaries over emulated links, and of PyTorch over the same.

pub mod gpt;
pub mod pytorch;
pub mod training;
