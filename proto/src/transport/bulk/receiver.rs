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

/// Decides from a frame's header whether to accept it, before any memory is reserved.
type Admission = dyn Fn(&FrameHeader) -> bool + Send + Sync;

/// A frame, with the share of the receiver's memory that it occupies until dropped.
#[derive(Debug)]
pub struct ReceivedFrame {
    frame: Frame,
    memory: FrameMemory,
}

/// A frame's share of its receiver's memory. Dropping it lets the peer send as much again, so it stays with
/// the frame until the frame is dropped or counted otherwise.
#[derive(Debug)]
pub struct FrameMemory {
    /// Of the connection's share, and of the common memory.
    _permits: [OwnedSemaphorePermit; 2],
}

impl ReceivedFrame {
    /// Returns the frame.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Splits off the frame's memory, which the caller keeps with the frame.
    #[must_use]
    pub fn into_parts(self) -> (Frame, FrameMemory) {
        (self.frame, self.memory)
    }
}

/// Receives frames from any number of connections into one bounded queue. Clones share it.
#[derive(Clone)]
pub struct BulkReceiver {
    frames: mpsc::Sender<ReceivedFrame>,
    memory: Arc<Semaphore>,
    limits: ReceiveLimits,
    admit: Arc<Admission>,
}

impl BulkReceiver {
    /// Creates a receiver of the frames that `admit` accepts, and its queue.
    pub fn new(
        limits: ReceiveLimits,
        admit: impl Fn(&FrameHeader) -> bool + Send + Sync + 'static,
    ) -> (Self, mpsc::Receiver<ReceivedFrame>) {
        let (frames, queue) = mpsc::channel(BULK_FRAMES_QUEUED_MAX);
        let memory = Arc::new(Semaphore::new(limits.bytes_max));
        (Self { frames, memory, limits, admit: Arc::new(admit) }, queue)
    }

    /// Returns the same receiver, queue and memory with another filter: for one peer, say, whose frames must
    /// name it as their sender.
    #[must_use]
    pub fn admitting(&self, admit: impl Fn(&FrameHeader) -> bool + Send + Sync + 'static) -> Self {
        Self { admit: Arc::new(admit), ..self.clone() }
    }

    /// Receives the frames of `connection` until it ends; returns the reason. An unwanted, faulty or slow
    /// frame costs its sender that frame only.
    pub async fn serve(&self, connection: &Connection) -> ConnectionError {
        let mut streams = JoinSet::new();
        let share = Arc::new(Semaphore::new(self.limits.bytes_max.min(CONNECTION_RECEIVE_BYTES_MAX)));
        loop {
            tokio::select! {
                // The transport settings permit no more; this check keeps the bound if they change.
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
            tracing::debug!(%error, "a bulk frame was rejected");
            let code = if matches!(error, ReceiveError::Refused) { REFUSED } else { FAULTY };
            // The stream may have ended already.
            let _ = stream.stop(code);
        }
    }

    async fn receive(&self, stream: &mut RecvStream, share: &Arc<Semaphore>) -> Result<(), ReceiveError> {
        let header = read_header(stream, &self.limits).await?.ok_or(ReceiveError::Truncated)?;
        if !(self.admit)(&header) {
            return Err(ReceiveError::Refused);
        }
        // The connection's own share comes first, so that frames waiting for the common one are bounded per
        // connection.
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
