//! What `deploy` starts workers with, read by the worker's own parser.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

mod compose;
mod image;
mod kubernetes;
mod launcher;
mod machines;
mod pages;
mod slurm;
mod tokens;
