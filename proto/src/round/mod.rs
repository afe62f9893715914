//! The round protocol: messages, waits and publications of one member in each round, and the transitions
//! between memberships. [`Member`] is a state machine without clock, socket, thread or arithmetic;
//! `proto/docs/round.md` gives the reasons.

mod arrivals;
mod collection;
mod command;
mod deadline;
mod dropped;
mod duties;
mod early;
mod event;
mod frame;
mod member;
mod pulls;
mod ready;
mod result;
mod results;
pub mod settle;
mod upload;

pub use command::{Command, Contribution, Local, Violation};
pub use deadline::{DeadlineConfig, SPREADS_KEPT, SPREADS_NEEDED};
pub use dropped::Dropped;
pub use early::{EARLY_BYTES_MIN, EARLY_FRAMES_PER_FRAGMENT_MAX, EARLY_MODELS_MAX};
pub use event::Event;
pub use frame::{Frame, FrameHeader, FrameKind};
pub use member::{Config, Member};
pub use pulls::{PULL_PASSES_MAX, PULL_PAUSE, PULLS_IN_FLIGHT_MAX};
pub use result::{CONTRIBUTORS_MAX, Content, FragmentResult, MalformedResult};
pub use settle::settle;

/// Rounds after the open one whose results are accepted: a member with a lagging network receives the others'
/// results meanwhile. Each costs a compressed model of memory.
pub const ROUNDS_AHEAD_MAX: u64 = 4;

/// Round trips of a round besides sending: half of one each for the contributions, the results, and
/// intermediate waits.
pub const LATENCY_ROUND_TRIPS: f64 = 1.5;

/// Rounds before the open one whose results are kept for lagging peers, whatever their size. Each costs a
/// compressed model of memory.
pub const RESULTS_KEPT_ROUNDS: u64 = 16;

/// The same while together they take no more memory than the model in f32. Where rounds are short and small,
/// many pass while a joiner fetches a state over a slow link. Even at a link saturated with results, this
/// covers the transfer time of the model.
pub const SMALL_RESULTS_KEPT_ROUNDS: u64 = 1024;

/// Maximum accusations reported in a generation: a broken peer must not fill the log.
pub const ACCUSATIONS_MAX: u32 = 64;
