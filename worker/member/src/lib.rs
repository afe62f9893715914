//! A member of a run: the round protocol, the arithmetic behind its commands, and the state that is equal on every member.
//!
//! [`Synchroniser::step`] handles an event through [`Outside`]: peers, device, coordinator, disks and clock. The crate itself has no tensors, sockets or
//! clocks. See `worker/docs/agent.md`.
#![deny(unsafe_code)]

pub mod activity;
mod adapt;
mod adaptation;
mod archiving;
mod arriving;
mod average;
mod checkpointing;
mod columns;
mod commands;
mod compression;
mod configured_rounds;
mod contributions;
mod donating;
mod encode;
mod event;
mod held;
mod layouts;
mod masking;
mod masks;
pub mod message;
mod outer;
mod outside;
mod preparation;
mod privacy;
mod reduce;
mod replica;
mod rounds;
mod running;
mod saved;
mod site;
pub mod sparse_ranges;
pub mod step_barrier;
mod synchroniser;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod unarchiving;
mod unsent;

pub use encode::compressor::{CompressError, Compressor, Job, Local};
pub use encode::pool::CodecPool;
pub use event::{Answer, HealedState, Reply, SYNC_QUEUE_EVENTS, SyncEvent};
pub use outside::{Background, Ongoing, Outside};
pub use replica::{Replica, hash_of};
pub use site::{SiteEvent, SiteJob, SiteJoin, SiteLink};
pub use synchroniser::{Outcome, Synchroniser};
