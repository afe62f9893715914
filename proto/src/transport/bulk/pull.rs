//! Asking a peer for frames.

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};

use super::limits::{
    BULK_PRIORITY, CONTROL_PRIORITY, FAULTY, PULL_REQUEST_BYTES_MAX, REFUSED, ReceiveLimits,
};
use super::sender::SendError;
use super::stream::{ReceiveError, read_body, read_header, within};
use crate::frame::Frame;

/// Sends `request` and returns the answer, of which nothing has come yet.
///
/// # Errors
/// The connection ended. A request over [`PULL_REQUEST_BYTES_MAX`] is refused by the peer.
pub async fn pull(
    connection: &Connection,
    request: &[u8],
    limits: ReceiveLimits,
) -> Result<PullResponse, SendError> {
    let (mut send, stream) = connection.open_bi().await?;
    // A closed stream would be told of below.
    let _ = send.set_priority(CONTROL_PRIORITY);
    send.write_all(request).await?;
    send.finish()?;
    Ok(PullResponse { stream, limits })
}

/// The frames that answer a [`pull`], in order. Dropping it tells the peer to stop.
#[derive(Debug)]
pub struct PullResponse {
    stream: RecvStream,
    limits: ReceiveLimits,
}

impl PullResponse {
    /// The next frame; `None` after the last. At most one body is held at a time. Not cancel safe: a dropped
    /// call leaves the stream within a frame.
    ///
    /// # Errors
    /// The peer refused the request, sent something else than frames, or was too slow.
    pub async fn next(&mut self) -> Result<Option<Frame>, ReceiveError> {
        let Some(header) = read_header(&mut self.stream, &self.limits).await? else { return Ok(None) };
        read_body(&mut self.stream, header, &self.limits).await.map(Some)
    }
}

/// A peer's request, to be answered with frames.
#[derive(Debug)]
pub struct PullRequest {
    /// What the peer asks for.
    pub request: Bytes,
    /// The way to answer.
    pub reply: PullReply,
}

impl PullRequest {
    /// Reads the request from a bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// The request is too long, or did not come in time; the peer is told so.
    pub async fn read(
        mut send: SendStream,
        mut receive: RecvStream,
        limits: &ReceiveLimits,
    ) -> Result<Self, ReceiveError> {
        let reading = receive.read_to_end(PULL_REQUEST_BYTES_MAX);
        match within(limits.stall_deadline, reading).await {
            Ok(Ok(request)) => {
                // A new stream cannot be closed yet, unless the peer is gone: then answering fails.
                let _ = send.set_priority(BULK_PRIORITY);
                Ok(Self { request: Bytes::from(request), reply: PullReply { stream: send } })
            }
            Ok(Err(quinn::ReadToEndError::Read(error))) => Err(error.into()),
            Ok(Err(quinn::ReadToEndError::TooLong)) => {
                let _ = (receive.stop(FAULTY), send.reset(FAULTY));
                Err(ReceiveError::Refused)
            }
            Err(error) => {
                let _ = (receive.stop(FAULTY), send.reset(FAULTY));
                Err(error)
            }
        }
    }
}

/// Sends the frames of an answer; end it with [`finish`](Self::finish) or [`refuse`](Self::refuse).
#[derive(Debug)]
pub struct PullReply {
    stream: SendStream,
}

impl PullReply {
    /// Sends one frame.
    ///
    /// # Errors
    /// The connection ended, or the peer wants no more.
    pub async fn send(&mut self, frame: &Frame) -> Result<(), SendError> {
        let header = Bytes::copy_from_slice(&frame.header().encode());
        Ok(self.stream.write_all_chunks(&mut [header, frame.body().clone()]).await?)
    }

    /// Ends the answer and waits until the peer's transport has all of it.
    ///
    /// # Errors
    /// The connection ended, or the peer wants no more.
    pub async fn finish(mut self) -> Result<(), SendError> {
        self.stream.finish()?;
        match self.stream.stopped().await? {
            None => Ok(()),
            Some(code) => Err(SendError::Refused(code)),
        }
    }

    /// Returns when nobody waits for the answer any more: the peer wants none, or is gone.
    pub async fn unwanted(&self) {
        // However that came to be.
        let _ = self.stream.stopped().await;
    }

    /// Answers that there is nothing to be had here.
    pub fn refuse(mut self) {
        // If the stream is closed already, the peer knows.
        let _ = self.stream.reset(REFUSED);
    }
}
