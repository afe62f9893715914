//! Receiving frames.

use std::fmt;
use std::sync::Arc;

use quinn::{Connection, ConnectionError, RecvStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::limits::{
    BULK_FRAMES_QUEUED_MAX, BULK_STREAMS_MAX, CONNECTION_RECEIVE_BYTES_MAX, FAULTY, REFUSED, ReceiveLimits,
};
use super::stream::{ReceiveError, read_body, read_end, read_header, reserve};
use crate::frame::{Frame, FrameHeader};

/// Decides from a frame's header whether it is wanted, before any memory is taken for it.
type Admission = dyn Fn(&FrameHeader) -> bool + Send + Sync;

/// A frame, and the share of the receiver's memory that it occupies until it is dropped.
#[derive(Debug)]
pub struct ReceivedFrame {
    frame: Frame,
    memory: FrameMemory,
}

/// A frame's share of its receiver's memory. Dropping it lets a peer send as much again, so it goes where the frame goes until nobody
/// needs the frame, or whoever keeps it counts it otherwise.
#[derive(Debug)]
pub struct FrameMemory {
    /// Of what its connection may have, and of what all may have together.
    _permits: [OwnedSemaphorePermit; 2],
}

impl ReceivedFrame {
    /// The frame.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The frame, and its memory to be kept beside it.
    #[must_use]
    pub fn into_parts(self) -> (Frame, FrameMemory) {
        (self.frame, self.memory)
    }
}

/// Takes frames from any number of connections into one bounded queue. Clones are the same receiver.
#[derive(Clone)]
pub struct BulkReceiver {
    frames: mpsc::Sender<ReceivedFrame>,
    memory: Arc<Semaphore>,
    limits: ReceiveLimits,
    admit: Arc<Admission>,
}

impl BulkReceiver {
    /// A receiver of the frames that `admit` wants, and the queue in which they arrive.
    pub fn new(
        limits: ReceiveLimits,
        admit: impl Fn(&FrameHeader) -> bool + Send + Sync + 'static,
    ) -> (Self, mpsc::Receiver<ReceivedFrame>) {
        let (frames, queue) = mpsc::channel(BULK_FRAMES_QUEUED_MAX);
        let memory = Arc::new(Semaphore::new(limits.bytes_max));
        (Self { frames, memory, limits, admit: Arc::new(admit) }, queue)
    }

    /// The same receiver, queue and memory, with other wants: for one peer, say, whose frames must name it as their sender.
    #[must_use]
    pub fn admitting(&self, admit: impl Fn(&FrameHeader) -> bool + Send + Sync + 'static) -> Self {
        Self { admit: Arc::new(admit), ..self.clone() }
    }

    /// Takes the frames of `connection` until it ends; returns why it did. A frame that is unwanted, faulty or
    /// slow costs its sender that frame only.
    pub async fn serve(&self, connection: &Connection) -> ConnectionError {
        let mut streams = JoinSet::new();
        let share = Arc::new(Semaphore::new(self.limits.bytes_max.min(CONNECTION_RECEIVE_BYTES_MAX)));
        loop {
            tokio::select! {
                // The transport settings allow no more; the check keeps the bound if they change.
                stream = connection.accept_uni(), if streams.len() < BULK_STREAMS_MAX as usize => match stream {
                    Ok(stream) => { streams.spawn(self.clone().take(stream, Arc::clone(&share))); }
                    Err(error) => return error,
                },
                Some(_) = streams.join_next() => {}
            }
        }
    }

    async fn take(self, mut stream: RecvStream, share: Arc<Semaphore>) {
        if let Err(error) = self.receive(&mut stream, &share).await {
            tracing::debug!(%error, "a bulk frame was not taken");
            let code = if matches!(error, ReceiveError::Refused) { REFUSED } else { FAULTY };
            // The stream may be over already, then there is nothing to stop.
            let _ = stream.stop(code);
        }
    }

    async fn receive(&self, stream: &mut RecvStream, share: &Arc<Semaphore>) -> Result<(), ReceiveError> {
        let header = read_header(stream, &self.limits).await?.ok_or(ReceiveError::Truncated)?;
        if !(self.admit)(&header) {
            return Err(ReceiveError::Refused);
        }
        // First its own share, so that what waits for the common one is bounded for each connection.
        let own = reserve(share, &header).await?;
        let memory = FrameMemory { _permits: [own, reserve(&self.memory, &header).await?] };
        let frame = read_body(stream, header, &self.limits).await?;
        read_end(stream, &self.limits).await?;
        let received = ReceivedFrame { frame, memory };
        self.frames.send(received).await.map_err(|_| ReceiveError::Ended)
    }
}

impl fmt::Debug for BulkReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkReceiver").field("limits", &self.limits).finish_non_exhaustive()
    }
}
