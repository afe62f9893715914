//! Tests without a run: `deploy` and documentation.

#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

mod deploy;
mod pages;
