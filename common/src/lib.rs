//! Common types of a run, free of clocks, sockets and tensors.
#![forbid(unsafe_code)]

pub mod back_off;
pub mod checks;
pub mod config;
pub mod explained;
pub mod host;
pub mod id;
pub mod learning_rate;
pub mod memory;
pub mod mixture;
pub mod model;
pub mod pipeline;
pub mod plan;
pub mod privacy;
pub mod sampler;
pub mod schedule;
pub mod terminal;
pub mod timeline;
pub mod units;
pub mod weights;
