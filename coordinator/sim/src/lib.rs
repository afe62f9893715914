//! One virtual world: the run's state machine and its members as they ship, with simulated devices, links and faults between them.
//!
//! Time goes from one due event to the next, on one thread, so a seed decides all that happens. Tests draw delays and faults from a seed and check promises;
//! [`simulate`] takes durations from the planner and gives figures. `docs/sim.md` is the design.
#![forbid(unsafe_code)]

mod agenda;
mod atoms;
mod books;
mod bus;
mod churn;
mod copies;
mod device;
mod exchanges;
mod faults;
mod node;
mod pace;
mod promises;
pub mod simulate;
mod stand_in;
mod table;
mod wires;
mod world;

pub use books::Books;
pub use device::{QUESTIONS, TURNING_ROUND};
pub use faults::{Fault, FrameFault, random, random_of, random_rounds};
pub use promises::{check, check_with};
pub use world::{Exchange, World};
