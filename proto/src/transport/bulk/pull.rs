//! Pulls: requesting frames from a peer.

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};

use super::limits::{
    BULK_PRIORITY, CONTROL_PRIORITY, FAULTY, PULL_REQUEST_BYTES_MAX, REFUSED, ReceiveLimits,
};
use super::sender::SendError;
use super::stream::{ReceiveError, read_body, read_header, within};
use crate::frame::Frame;

/// Sends `request` and returns the response stream, before any data has arrived.
///
/// # Errors
/// The connection ended. The peer refuses a request over [`PULL_REQUEST_BYTES_MAX`].
pub async fn pull(
    connection: &Connection,
    request: &[u8],
    limits: ReceiveLimits,
) -> Result<PullResponse, SendError> {
    let (mut send, stream) = connection.open_bi().await?;
    // The next write reports a closed stream.
    let _ = send.set_priority(CONTROL_PRIORITY);
    send.write_all(request).await?;
    send.finish()?;
    Ok(PullResponse { stream, limits })
}

/// The frames of a response to [`pull`], in order. Dropping it tells the peer to stop.
#[derive(Debug)]
pub struct PullResponse {
    stream: RecvStream,
    limits: ReceiveLimits,
}

impl PullResponse {
    /// Returns the next frame; `None` after the last. Holds at most one body at a time. Not cancel-safe: a
    /// dropped call leaves the stream within a frame.
    ///
    /// # Errors
    /// The peer refused the request, sent other data than frames, or was too slow.
    pub async fn next(&mut self) -> Result<Option<Frame>, ReceiveError> {
        let Some(header) = read_header(&mut self.stream, &self.limits).await? else { return Ok(None) };
        read_body(&mut self.stream, header, &self.limits).await.map(Some)
    }
}

/// A peer's request, to be served with frames.
#[derive(Debug)]
pub struct PullRequest {
    /// Content of the request.
    pub request: Bytes,
    /// Response stream.
    pub reply: PullReply,
}

impl PullRequest {
    /// Reads the request from a bidirectional stream that the peer opened.
    ///
    /// # Errors
    /// The request is too long or late; the peer is notified.
    pub async fn read(
        mut send: SendStream,
        mut receive: RecvStream,
        limits: &ReceiveLimits,
    ) -> Result<Self, ReceiveError> {
        let reading = receive.read_to_end(PULL_REQUEST_BYTES_MAX);
        match within(limits.stall_deadline, reading).await {
            Ok(Ok(request)) => {
                // A new stream is not closed yet unless the peer is lost; the response then fails.
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

/// Sends the frames of a response; end it with [`finish`](Self::finish) or [`refuse`](Self::refuse).
#[derive(Debug)]
pub struct PullReply {
    stream: SendStream,
}

impl PullReply {
    /// Sends one frame.
    ///
    /// # Errors
    /// The connection ended, or the peer stopped the response.
    pub async fn send(&mut self, frame: &Frame) -> Result<(), SendError> {
        let header = Bytes::copy_from_slice(&frame.header().encode());
        Ok(self.stream.write_all_chunks(&mut [header, frame.body().clone()]).await?)
    }

    /// Ends the response and waits until the peer's transport has all of it.
    ///
    /// # Errors
    /// The connection ended, or the peer stopped the response.
    pub async fn finish(mut self) -> Result<(), SendError> {
        self.stream.finish()?;
        match self.stream.stopped().await? {
            None => Ok(()),
            Some(code) => Err(SendError::Refused(code)),
        }
    }

    /// Returns once the peer no longer wants the response, or is lost.
    pub async fn unwanted(&self) {
        // For whatever reason.
        let _ = self.stream.stopped().await;
    }

    /// Refuses the request, as the data is not available here.
    pub fn refuse(mut self) {
        // On a stream already closed the peer knows.
        let _ = self.stream.reset(REFUSED);
    }
}
