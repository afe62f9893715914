//! The conversation between a worker and the coordinator.

pub mod message;
