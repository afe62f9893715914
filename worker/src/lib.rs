//! The training engine and the agent that follows the coordinator.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod data;
pub mod engine;
pub mod models;
