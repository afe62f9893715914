//! The coordinator's program: the durable store ([`store`]), effects ([`runtime`]), the HTTP API ([`http`]) and the command line ([`cli`]).
//!
//! Decisions are in `longhaul-run`. `docs/coordinator.md` is the design.
#![forbid(unsafe_code)]

pub mod cli;
pub mod history;
pub mod http;
pub mod inbox;
pub mod journal;
pub mod mlflow;
pub mod record;
pub mod runtime;
mod slowdown;
pub mod store;
pub mod tensorboard;
