//! The run as a pure state machine: [`Run::handle`] takes events and the time, and returns [`Command`]s.
//!
//! `docs/run.md` is the design, `docs/protocol.md` at the top the contract with workers.
#![forbid(unsafe_code)]

mod run;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use run::*;
