//! The worker: its threads, the data plane between workers, and the agent that follows the coordinator.
#![deny(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod data_command;
mod data_progress;
pub mod doctor;
mod epochs;
pub mod evaluate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod member;
pub mod model_command;
mod opened;
pub mod pages;
pub mod replica;
pub mod sample;
mod stop;
pub mod train;
