//! What needs no run: `deploy` and pages for people.

#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

mod deploy;
mod pages;
