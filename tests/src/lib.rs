//! The WAN emulator and the harness of the end-to-end tests.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod wan;
