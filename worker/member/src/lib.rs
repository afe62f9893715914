//! A member of a run: the round protocol, the numbers behind its commands, and the state that is equal on every member.
//!
//! [`Synchroniser::step`] takes an event and does what follows from it, through [`Outside`]: peers, device, coordinator, disks and clock. The worker's thread gives it
//! real ones. Nothing here knows tensors, sockets or the time. `worker/docs/agent.md` says how it stands between device and network.
#![deny(unsafe_code)]

pub mod activity;
mod adaptation;
mod archiving;
mod arriving;
mod audit;
mod backlog;
mod backups;
mod checkpointing;
mod columns;
mod commands;
mod compression;
mod compressor;
mod contributions;
mod donating;
mod error_feedback;
mod event;
mod guard;
mod held;
mod ladder;
mod layouts;
mod masking;
mod mean;
mod mechanism;
pub mod message;
mod outer;
mod outside;
mod pool;
mod preparation;
mod privacy;
mod rate;
mod reducer;
mod refusals;
mod replica;
mod robust;
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
mod tiling;
mod unarchiving;
mod union;

pub use compressor::{CompressError, Compressor, Job, Local};
pub use event::{Answer, HealedState, Reply, SYNC_QUEUE_EVENTS, SyncEvent};
pub use outside::{Background, Ongoing, Outside};
pub use pool::CodecPool;
pub use replica::{Replica, hash_of};
pub use site::{SiteEvent, SiteJob, SiteJoin, SiteLink};
pub use synchroniser::{Outcome, Synchroniser};
