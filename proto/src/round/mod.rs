//! The round protocol: what one member sends, waits for and publishes. See `proto/docs/round.md`.

mod command;
mod event;
mod frame;
mod result;

pub use command::{Command, Contribution, Local, Violation};
pub use event::Event;
pub use frame::{Frame, FrameHeader, FrameKind};
pub use result::{CONTRIBUTORS_MAX, Content, FragmentResult, MalformedResult};
