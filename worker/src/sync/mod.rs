//! The synchroniser: the round protocol, the numbers behind its commands, and the state that is equal on every member.
//! `docs/agent.md` says how it stands between device and network.

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
mod event;
mod guard;
mod held;
mod ladder;
mod layouts;
mod masking;
mod mean;
mod mechanism;
mod memory;
mod outer;
mod pool;
mod preparation;
mod privacy;
mod rate;
mod reducer;
mod refusals;
mod replica;
mod robust;
mod rounds;
mod saved;
mod site;
mod synchroniser;
#[cfg(test)]
mod tests;
mod tiling;
mod unarchiving;
mod union;

pub use compressor::{CompressError, Compressor, Job, Local};
pub use event::{HealedState, SYNC_QUEUE_EVENTS, SyncEvent};
pub use pool::CodecPool;
pub use replica::{Replica, hash_of};
pub use site::SiteEvent;
pub use synchroniser::{Links, Outcome, Synchroniser};
