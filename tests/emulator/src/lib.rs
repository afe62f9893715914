//! A WAN in user space: links with a rate, a delay and faults, under UDP relays or a pair of TUN devices.
//!
//! [`LinkState`] is the model: pure, driven by time and a random number generator. [`Link`] shares one
//! between threads and reads the clock. [`udp::Relays`] and [`tun::TunPair`] move real packets through links.
//! `docs/emulator.md` describes the design.
#![forbid(unsafe_code)]

pub mod tun;
pub mod udp;

mod clock;
mod config;
mod departures;
mod jitter;
mod link;
mod link_state;
mod loss;
mod stats;
mod waiter;

pub use config::{ConfigError, LinkConfig};
pub use link::Link;
pub use link_state::{DropReason, LinkState, Verdict};
pub use stats::{Count, LinkStats};
