//! A run to which things happen: a seeded list of faults, and checks of what the run promises. `tests/docs/chaos.md` is the design.

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
