//! Bounds of bulk transfer.

use std::time::Duration;

use quinn::VarInt;

use crate::frame::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};

/// Maximum frames in flight per connection. A frame keeps its slot until acknowledged, so small frames need
/// many slots to fill a long link: fragments of 32,768 values in two bits are 8 kB, and 512 of them keep 500
/// Mbit/s full over a round trip of 65 ms.
pub const BULK_STREAMS_MAX: u32 = 512;
/// Maximum bytes of frames in flight per connection: two of the largest. quinn resumes streams that wait for
/// its send window in any order, and an overtaken stream would look stalled, so all frames in flight fit the
/// window.
pub const BULK_IN_FLIGHT_BYTES_MAX: u32 = 2 * (FRAME_BODY_BYTES_MAX + FRAME_HEADER_BYTES as u32);
/// Highest of quinn's stream priorities for bulk data.
pub const BULK_PRIORITY: i32 = 0;
/// quinn's stream priority for short urgent data besides bulk, such as requests: above bulk.
pub const CONTROL_PRIORITY: i32 = 10;
/// Maximum bytes of frames in a process over all connections, from a frame's header until its consumer drops
/// it (or its [`super::FrameMemory`]): sixteen of the largest. When used up, senders wait (flow control).
pub const BULK_RECEIVE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Share of one connection: four of the largest frames, so that no peer takes or waits for all of it.
pub const CONNECTION_RECEIVE_BYTES_MAX: usize = 4 * FRAME_BODY_BYTES_MAX as usize;
/// Maximum frames in a receiver's queue; when full, senders wait (flow control).
pub const BULK_FRAMES_QUEUED_MAX: usize = 64;
/// Maximum request of a pull.
pub const PULL_REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Timeout of silence within a frame. Longer than a route change takes; a dead connection ends sooner by its
/// own timeout.
pub const STALL_DEADLINE: Duration = Duration::from_secs(30);
/// Timeout of a whole frame, so that a trickle does not hold memory for ever. Sixteen of the largest frames
/// over 10 Mbit/s take four minutes.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(600);

/// The receiver does not want the frame.
pub(super) const REFUSED: VarInt = VarInt::from_u32(1);
/// The bytes are not a frame, or came too slowly.
pub(super) const FAULTY: VarInt = VarInt::from_u32(2);

/// Limits of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveLimits {
    /// See [`BULK_RECEIVE_BYTES_MAX`].
    pub bytes_max: usize,
    /// See [`STALL_DEADLINE`].
    pub stall_deadline: Duration,
    /// See [`FRAME_DEADLINE`].
    pub frame_deadline: Duration,
}

impl Default for ReceiveLimits {
    fn default() -> Self {
        Self {
            bytes_max: BULK_RECEIVE_BYTES_MAX,
            stall_deadline: STALL_DEADLINE,
            frame_deadline: FRAME_DEADLINE,
        }
    }
}
