//! Bulk frames over a connection.
//!
//! Each frame has its own unidirectional stream ([`BulkSender`], [`BulkReceiver`]): lost packets of one frame
//! do not delay another, and a refusal ends one frame only. A pull is a bidirectional stream: a small
//! request, then frames one after another ([`pull`], [`PullRequest`]).

mod limits;
mod pull;
mod receiver;
mod sender;
mod stream;

pub use limits::{
    BULK_FRAMES_QUEUED_MAX, BULK_IN_FLIGHT_BYTES_MAX, BULK_PRIORITY, BULK_RECEIVE_BYTES_MAX,
    BULK_STREAMS_MAX, CONNECTION_RECEIVE_BYTES_MAX, CONTROL_PRIORITY, FRAME_DEADLINE, PULL_REQUEST_BYTES_MAX,
    ReceiveLimits, STALL_DEADLINE,
};
pub use pull::{PullReply, PullRequest, PullResponse, pull};
pub use receiver::{BulkReceiver, FrameMemory, ReceivedFrame};
pub use sender::{BulkSender, SendError};
pub use stream::ReceiveError;
