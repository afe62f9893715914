//! Training on one device: the device thread of `docs/agent.md`.

pub mod device;
mod fragments;
pub mod selection;
mod spare;
mod tally;
