//! Training on one device: what `docs/agent.md` calls the device thread.

pub mod device;
mod fragments;
pub mod gate;
pub mod message;
pub mod progress;
pub mod selection;
mod spare;
pub mod stretches;
mod tally;
mod waits;
