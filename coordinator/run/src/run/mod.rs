//! The core, its components, and what they share.

mod accounting;
mod as_toml;
mod base_model;
mod command;
mod core;
mod data;
mod encoding;
mod event;
mod generations;
mod liveness;
mod machine;
mod peer;
mod placement;
mod planning;
mod recovery;
mod removals;
mod state;
mod timers;
mod views;
mod ways;

pub use accounting::evaluations::{Evaluated, Evaluations};
pub use accounting::ledger::Ledger;
pub use accounting::parity::Verdict;
pub use accounting::progress::{RoundSummary, Totals};
pub use accounting::ranges::Ranges;
pub use accounting::refusals::Cause;
pub use accounting::releases::{PrivacyStatus, Releases};
pub use accounting::residuals::ResidualsLost;
pub use accounting::tally::Tally;
pub use accounting::tasks::{KindScore, Scored, Tasks};
pub use command::{Command, Notice, Record, Severity};
pub use encoding::plausible;
pub use event::{ConnectionId, Event};
pub use generations::generation_config::{GenerationConfig, SyncGroup};
pub use generations::operate::Suspended;
pub use liveness::departures::GoneStatus;
pub use machine::Run;
pub use planning::replanning::Moving;
pub use state::{
    Checkpoint, CheckpointsState, Decided, EndState, Facts, Fork, GenerationsState, Known, Lineage, Phase,
    PlansState, Requests, ResidualsState, Roster, RoundsState, RunState,
};
pub use views::member_status::{Health, MemberPlace, MemberStatus, MemberWork};
pub use views::snapshot::Snapshot;
pub use views::status::{
    AccountingStatus, CheckpointStatus, ClusterStatus, EventStatus, LedgerStatus, LinkStatus, OverheadStatus,
    ParityStatus, ProgressStatus, RefusalStatus, RunStatus, SamplesStatus, ScoreStatus, Status,
    ThroughputStatus, TrafficStatus, TrainingStatus,
};
pub use ways::{KnownWay, Ways};

#[cfg(test)]
mod scenarios;
