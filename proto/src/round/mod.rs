//! The round protocol: what one member sends, waits for and publishes, round by round, and what becomes of it
//! when the membership changes. [`Member`] is a state machine without clock, socket, thread or arithmetic;
//! `proto/docs/round.md` tells why it is as it is.

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

/// Rounds after the open one whose results are taken: a member whose network lags is sent what the others do
/// meanwhile. Each costs a compressed model of memory.
pub const ROUNDS_AHEAD_MAX: u64 = 4;

/// Round trips that a round takes besides sending: half of one for the contributions, half of one for the results, and half of one for what is
/// waited for on the way.
pub const LATENCY_ROUND_TRIPS: f64 = 1.5;

/// Rounds before the open one whose results are kept for peers that lag, however large they are. Each costs a compressed model of memory.
pub const RESULTS_KEPT_ROUNDS: u64 = 16;

/// The same while all of them take no more memory than the model in f32: where rounds are short and small, many pass while somebody that joins
/// fetches a state over a slow link. Whoever keeps a link full with results has kept what passed in the time that the model takes.
pub const SMALL_RESULTS_KEPT_ROUNDS: u64 = 1024;

/// Accusations that are reported in a generation: a broken peer must not fill the log.
pub const ACCUSATIONS_MAX: u32 = 64;
