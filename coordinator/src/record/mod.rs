//! The run's inputs, with a trace of its decisions, for a replay.
//!
//! A record is a file: `MAGIC`, then entries. An entry is its length in bytes (u32, little-endian), a byte for its kind, and postcard. The first one is an [`Image`], the
//! whole run as a value; the others are events, each with its time and a [`Trace`] of each resulting command. So each file can be replayed by itself. The layout is that
//! of this release's types: `SCHEMA` names it.
//!
//! All events are in it, even heartbeats without effect: permitted silences and shares of a step follow from their times and contents.

mod reader;
mod replay;
mod trace;
mod writer;

use serde::{Deserialize, Serialize};

use longhaul_run::Run;

pub use reader::{Entry, ReadError, Reader};
pub use replay::{Difference, Step, Summary, replay};
pub use trace::{Kind, Trace};
pub use writer::{FILE_BYTES_MAX, FILES_KEPT, FOLDER, Recorder};

/// How a record begins.
const MAGIC: &[u8; 8] = b"lngh-rec";
/// Version of the layout. A change to an event, a command or the run that old code would misread raises it.
const SCHEMA: u16 = 17;
/// The longest entry, in bytes: an image of a run of ten thousand workers is a few megabytes.
const ENTRY_BYTES_MAX: u32 = 256 << 20;

/// Which kind an entry is.
const IMAGE: u8 = 0;
const DECIDED: u8 = 1;

/// The run as it was when a file was begun.
#[derive(Debug, Serialize, Deserialize)]
pub struct Image {
    /// The release that wrote it.
    pub release: String,
    /// The Unix time in milliseconds at which the run's clock was zero.
    pub clock_started_unix_ms: u64,
    /// All of it.
    pub run: Box<Run>,
}

#[cfg(test)]
mod tests;
