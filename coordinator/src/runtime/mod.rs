//! Effects: clock, sockets, tasks, disk. It feeds the run with events and executes its commands.
//!
//! While another coordinator leads, [`Standby`] waits for its turn. The leader has one task that owns the run and the store ([`owner`]). Each connection has a task that
//! reads (`connection`) and a bounded outgoing queue; the incoming queue is bounded too, and fair: a connection has at most one message waiting in it.

mod calls;
mod clock;
mod connection;
mod curves;
mod found;
mod fresh;
mod history_recorder;
mod history_writer;
mod owner;
mod serve;
mod standby;
#[cfg_attr(not(feature = "otel"), path = "no_telemetry.rs")]
mod telemetry;

pub use clock::Clock;
pub use found::{
    FoundError, Founded, RequestedRun, Taken, begin_as, check_config, differences_in, found, new_run,
    open_store,
};
pub use fresh::FreshFolder;
pub use history_recorder::HistoryRecorder;
pub use owner::{Ended, Owner, OwnerError};
pub use serve::{ServeError, Served, owner, serve};
pub use standby::{Standby, StandbyError};
pub use telemetry::Exports;
