//! Reading one frame from a stream, within bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn::{ReadError, RecvStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::limits::{REFUSED, ReceiveLimits};
use crate::frame::{FRAME_HEADER_BYTES, Frame, FrameError, FrameHeader};

/// Maximum bytes of one read: a few packets, so that a read's deadline covers little.
const READ_BYTES_MAX: usize = 256 * 1024;

/// A frame that did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The stream or its connection broke.
    #[error("read a frame")]
    Read(#[from] ReadError),
    /// The bytes are not a frame.
    #[error("not a frame")]
    Frame(#[from] FrameError),
    /// The stream ended within a header.
    #[error("the stream ended within a frame's header")]
    Truncated,
    /// More bytes follow the frame.
    #[error("the stream goes on after its frame")]
    Trailing,
    /// No or too little data came within the deadline.
    #[error("the frame did not arrive within {0:?}")]
    TooSlow(Duration),
    /// The receiver does not want this frame.
    #[error("the frame is not wanted here")]
    Refused,
    /// The receiver has ended.
    #[error("the receiver has ended")]
    Ended,
}

impl ReceiveError {
    /// Whether a peer has refused a request by [`refuse`](super::PullReply::refuse).
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Read(ReadError::Reset(code)) if *code == REFUSED)
    }
}

/// Reads a header within one deadline; `None`: the stream ended before it.
pub(super) async fn read_header(
    stream: &mut RecvStream,
    limits: &ReceiveLimits,
) -> Result<Option<FrameHeader>, ReceiveError> {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    let filled = within(limits.stall_deadline, fill(stream, &mut bytes)).await??;
    match filled {
        0 => Ok(None),
        FRAME_HEADER_BYTES => Ok(Some(FrameHeader::decode(&bytes)?)),
        _ => Err(ReceiveError::Truncated),
    }
}

/// Reads until `bytes` is full or the stream ends; returns the number of bytes read.
async fn fill(stream: &mut RecvStream, bytes: &mut [u8]) -> Result<usize, ReadError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]).await? {
            Some(count) => filled += count,
            None => break,
        }
    }
    Ok(filled)
}

/// Reserves memory for a body; waits until enough is free.
pub(super) async fn reserve(
    memory: &Arc<Semaphore>,
    header: &FrameHeader,
) -> Result<OwnedSemaphorePermit, ReceiveError> {
    memory.clone().acquire_many_owned(header.body_len).await.map_err(|_| ReceiveError::Ended)
}

/// Reads and checks the body that `header` announces, and no more.
pub(super) async fn read_body(
    stream: &mut RecvStream,
    header: FrameHeader,
    limits: &ReceiveLimits,
) -> Result<Frame, ReceiveError> {
    let read = read_exactly(stream, header.body_len as usize, limits.stall_deadline);
    let body = within(limits.frame_deadline, read).await??;
    Ok(Frame::assemble(header, body)?)
}

/// Expects the end of the stream. Without this read, the sender would learn that its frame was not wanted.
pub(super) async fn read_end(stream: &mut RecvStream, limits: &ReceiveLimits) -> Result<(), ReceiveError> {
    match within(limits.stall_deadline, stream.read_chunk(1, true)).await?? {
        None => Ok(()),
        Some(_) => Err(ReceiveError::Trailing),
    }
}

async fn read_exactly(
    stream: &mut RecvStream,
    length: usize,
    stall_deadline: Duration,
) -> Result<Bytes, ReceiveError> {
    // The memory is reserved; pages are touched only as data arrives.
    let mut body = BytesMut::with_capacity(length);
    while body.len() < length {
        let wanted = (length - body.len()).min(READ_BYTES_MAX);
        let chunk = within(stall_deadline, stream.read_chunk(wanted, true)).await??;
        let Some(chunk) = chunk else { break };
        body.extend_from_slice(&chunk.bytes);
    }
    Ok(body.freeze())
}

/// Awaits `future` for at most `deadline`.
pub(super) async fn within<T>(
    deadline: Duration,
    future: impl Future<Output = T>,
) -> Result<T, ReceiveError> {
    timeout(deadline, future).await.map_err(|_| ReceiveError::TooSlow(deadline))
}
