//! What `deploy` starts coordinators with, read by the coordinator's own parsers.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

mod compose;
mod image;
mod kubernetes;
mod machines;
mod metrics;
mod pages;
#[path = "../running/mod.rs"]
mod running;
