//! One virtual world: the run's state machine and its members as they ship, with virtual devices, links and faults between them.
//!
//! Time goes from one thing that is due to the next, on one thread, so that a seed says all that happens. What is real: [`longhaul_run::Run`],
//! [`longhaul_member::Synchroniser`] with its codecs, and checkpoints on a disk. What is played: the device (a gradient is a count of samples), the worker's
//! agent (it joins, tells that it is alive, and says reports again), links and processes. See `docs/sim.md`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "this is all test code")]

mod books;
mod bus;
mod device;
mod faults;
mod node;
mod promises;
mod wires;
mod world;

pub use books::Books;
pub use faults::{Fault, random};
pub use promises::{check, check_with};
pub use world::World;
