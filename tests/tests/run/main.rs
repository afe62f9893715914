//! Whole runs: real processes, real QUIC, an emulated link between the sites.
//!
//! The tests share two cores, so each run is small, and they run one after the other (`RUNS`).

mod faults;
mod promises;
mod refusals;
mod scenario;
