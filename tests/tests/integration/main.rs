//! What needs no run: `deploy`, pages for people, and the emulator as scripts use it.

#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

mod deploy;
mod pages;
mod wan_emulator;
