//! The coordinator of a run.
#![forbid(unsafe_code)]

pub mod run;
