//! The run as a pure state machine: [`Run::handle`] takes events and the time, and returns [`Command`]s.
//!
//! `docs/protocol.md` tells what happens and why; `coordinator/docs/coordinator.md` how it is divided among these files.

mod absent_holders;
mod addresses;
mod admit;
mod archived;
mod as_toml;
mod assembly;
mod audits;
mod command;
mod components;
mod core;
mod data;
mod departures;
mod encoding;
mod event;
mod generation;
mod handovers;
mod hearing;
mod keeping;
mod late;
mod latecomers;
mod ledger;
mod lineup;
mod machine;
mod operate;
mod overview;
mod pace;
mod parity;
mod peer;
mod planning;
mod prepare;
mod problems;
mod progress;
mod punctuality;
mod ranges;
mod reach;
mod refusals;
mod releases;
mod removals;
mod replanning;
mod reports;
mod residuals;
mod rewinds;
mod seating;
mod seats;
mod shares;
mod snapshot;
mod source;
mod speeds;
mod state;
mod status;
mod survey;
mod tally;
mod timers;
mod together;
mod ways;

pub use command::{Command, Notice, Record, Severity};
pub use departures::GoneStatus;
pub use encoding::plausible;
pub use event::{ConnectionId, Event};
pub use ledger::Ledger;
pub use lineup::{Lineup, SyncGroup};
pub use machine::Run;
pub use operate::Suspended;
pub use parity::Verdict;
pub use progress::{RoundSummary, Totals};
pub use ranges::Ranges;
pub use refusals::Cause;
pub use releases::{PrivacyStatus, Releases};
pub use replanning::Moving;
pub use residuals::ResidualsLost;
pub use snapshot::Snapshot;
pub use state::{Checkpoint, Decided, Facts, Known, Phase, State};
pub use status::{
    CheckpointStatus, EventStatus, Health, LedgerStatus, LinkStatus, MemberStatus, ParityStatus,
    RefusalStatus, Status,
};
pub use tally::Tally;
pub use ways::{KnownWay, Ways};

#[cfg(test)]
pub(crate) mod scenarios;
mod silence;
#[cfg(test)]
mod simulation;
