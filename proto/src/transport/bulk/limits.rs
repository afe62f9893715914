//! Bounds of bulk transfer.

use std::time::Duration;

use quinn::VarInt;

use crate::frame::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};

/// Frames on their way at once per connection. A frame keeps its turn until it is acknowledged, so small frames need many turns to fill a long link: fragments
/// of 32,768 values in two bits are 8 kB, of which 512 keep 500 Mbit/s full over a round trip of 65 ms.
pub const BULK_STREAMS_MAX: u32 = 512;
/// Bytes of frames on their way at once per connection: two of the largest. quinn lets streams that wait for room in its send window go on in any order, and a stream that
/// others overtook would be taken for a stalled one, so all that is on its way has room there.
pub const BULK_IN_FLIGHT_BYTES_MAX: u32 = 2 * (FRAME_BODY_BYTES_MAX + FRAME_HEADER_BYTES as u32);
/// The highest of quinn's stream priorities that bulk data uses.
pub const BULK_PRIORITY: i32 = 0;
/// quinn's stream priority for what is short and waited for beside bulk, as requests are: above it.
pub const CONTROL_PRIORITY: i32 = 10;
/// Bytes of frames that a process holds over all its connections, from a frame's header until its consumer
/// drops it (or its [`super::FrameMemory`]): sixteen of the largest. When it is used up, senders wait (flow control).
pub const BULK_RECEIVE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Of those, what one connection may have: four of the largest frames, so that no peer takes or waits for all of it.
pub const CONNECTION_RECEIVE_BYTES_MAX: usize = 4 * FRAME_BODY_BYTES_MAX as usize;
/// Frames that a receiver's queue holds; when it is full, senders wait (flow control).
pub const BULK_FRAMES_QUEUED_MAX: usize = 64;
/// Longest request of a pull.
pub const PULL_REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Silence within a frame after which it is given up. Longer than a route takes to change; a dead connection
/// ends sooner by its own timeout.
pub const STALL_DEADLINE: Duration = Duration::from_secs(30);
/// Time that a whole frame may take, so that a trickle does not hold memory for ever. Sixteen of the
/// largest frames over 10 Mbit/s take four minutes.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(600);

/// Sent when the receiver does not want the frame.
pub(super) const REFUSED: VarInt = VarInt::from_u32(1);
/// Sent when the frame's bytes are not a frame, or came too slowly.
pub(super) const FAULTY: VarInt = VarInt::from_u32(2);

/// What a receiver grants its peers.
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
