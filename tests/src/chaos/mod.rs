//! Fault injection into a run: a seeded list of faults, and checks of the run's invariants.
//! `tests/docs/chaos.md` describes the design.

mod checker;
mod disks;
mod report;
mod run_toml;
mod schedule;
mod soak;

pub use checker::{Checker, Violation, exactly_once};
pub use report::Report;
pub use run_toml::{BATCH, Pace, run_toml};
pub use schedule::{Event, Fault, Kind, Shape, schedule};
pub use soak::{Soak, SoakConfig};
