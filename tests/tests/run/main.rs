//! Whole runs: real processes, real QUIC, an emulated link between the sites.
//!
//! The tests share two cores, so each run is small and takes its turn (`turns`).

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test, and says where")]

mod archive;
mod chaos;
mod classification;
mod dashboard;
mod data;
mod evaluations;
mod examples;
mod faults;
mod forks;
mod hostile;
mod masked;
mod moves;
mod operate;
mod pipelines;
mod presets;
mod pretrained;
mod privacy;
mod promises;
mod refusals;
mod regrouping;
mod remote_data;
mod renewal;
mod scenario;
mod selection;
mod shares;
mod site;
mod speaking;
mod switching_off;
mod take_over;
mod tensor_groups;
mod terminal;
mod traces;
mod turns;
mod tutorials;
mod word_bert;
