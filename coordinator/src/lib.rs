//! The coordinator of a run: decisions ([`run`]), what it remembers ([`store`]), effects ([`runtime`]), and its two faces,
//! the HTTP API ([`http`]) and the command line ([`cli`]). `docs/coordinator.md` is the design.
#![forbid(unsafe_code)]

pub mod cli;
pub mod history;
pub mod http;
pub mod inbox;
pub mod journal;
pub mod record;
pub mod runtime;
mod slowdown;
pub mod store;
pub mod tensorboard;
