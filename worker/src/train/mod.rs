//! Training on one device: what `docs/agent.md` calls the device thread.

pub mod device;
mod fragments;
pub mod selection;
mod spare;
mod tally;
