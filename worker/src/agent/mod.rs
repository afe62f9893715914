//! `worker join`: identity, the conversation with the coordinator, and its sessions.

mod addresses;
mod base_model;
mod connection;
mod control_group;
mod coordinators;
mod departure;
mod device_thread;
mod ending;
mod heartbeats;
mod identity_slot;
mod join;
mod line;
mod link_reports;
mod memory;
mod offers;
mod reach;
mod rejoins;
mod reminder;
mod reports;
mod session;
mod speaking;
mod speed;
mod status_updates;
mod survey;
#[cfg_attr(not(feature = "otel"), path = "no_telemetry.rs")]
mod telemetry;
mod twins;

pub(crate) use addresses::{first_that_answers, in_order};
pub use join::{HANDING_OVER_MAX, LEAVING_MAX, cache_dir, join};
