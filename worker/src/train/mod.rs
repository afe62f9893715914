//! Training on one device: the device thread of `docs/agent.md`.

pub mod device;
mod first_state;
mod fragments;
pub mod selection;
mod spare;
mod tally;

pub use first_state::first_state;
