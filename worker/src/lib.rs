//! The training engine and the agent that follows the coordinator.
#![deny(unsafe_code)]

pub mod agent;
pub mod checkpoint;
pub mod cli;
pub mod collective;
pub mod data_command;
mod data_progress;
pub mod doctor;
pub mod engine;
pub mod flight;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host_tensor;
pub mod models;
pub mod network;
pub mod pages;
mod pinned;
pub mod sample;
mod shim;
pub mod sync;
pub mod train;
