//! Sending frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use quinn::{ClosedStream, Connection, ConnectionError, StoppedError, VarInt, WriteError};
use tokio::sync::Semaphore;

use super::limits::{BULK_IN_FLIGHT_BYTES_MAX, BULK_PRIORITY, BULK_STREAMS_MAX};
use crate::frame::{FRAME_HEADER_BYTES, Frame};
use crate::transport::nudge::Nudging;

/// Frames until priorities restart.
const PRIORITY_MASK: u32 = (1 << 30) - 1;

/// Sends frames over one connection, at most [`BULK_STREAMS_MAX`] and [`BULK_IN_FLIGHT_BYTES_MAX`] at a time;
/// further ones wait in order. Clones share the bound.
#[derive(Clone, Debug)]
pub struct BulkSender {
    connection: Connection,
    turns: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    sent: Arc<AtomicU32>,
    _nudging: Arc<Nudging>,
}

/// A frame that was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The connection ended.
    #[error("the connection ended")]
    Connection(#[from] ConnectionError),
    /// The receiver did not want this frame or found it faulty; the connection remains.
    #[error("the receiver refused the frame (code {0})")]
    Refused(VarInt),
    /// The stream was closed locally.
    #[error("the stream was closed")]
    Closed,
}

impl BulkSender {
    /// Creates a sender over `connection`. Call it within a tokio runtime.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        let turns = Arc::new(Semaphore::new(BULK_STREAMS_MAX as usize));
        let bytes = Arc::new(Semaphore::new(BULK_IN_FLIGHT_BYTES_MAX as usize));
        let nudging = Arc::new(Nudging::of(&connection));
        Self { connection, turns, bytes, sent: Arc::default(), _nudging: nudging }
    }

    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends `frame` and waits until the peer's transport has acknowledged all of it. Dropping the future
    /// cancels the frame.
    ///
    /// # Errors
    /// The connection ended, or the receiver refused the frame.
    pub async fn send(&self, frame: &Frame) -> Result<(), SendError> {
        let _turn = self.turns.acquire().await.map_err(|_| SendError::Closed)?;
        // A frame is no longer than that; both queues are first come, first served.
        let bytes = (FRAME_HEADER_BYTES + frame.body().len()).min(BULK_IN_FLIGHT_BYTES_MAX as usize) as u32;
        let _bytes = self.bytes.acquire_many(bytes).await.map_err(|_| SendError::Closed)?;
        let mut stream = self.connection.open_uni().await?;
        stream.set_priority(self.next_priority())?;
        let header = Bytes::copy_from_slice(&frame.header().encode());
        stream.write_all_chunks(&mut [header, frame.body().clone()]).await?;
        stream.finish()?;
        match stream.stopped().await? {
            None => Ok(()),
            Some(code) => Err(SendError::Refused(code)),
        }
    }

    /// Returns a priority above that of the next frame, so that frames complete one after another instead of
    /// all at the end. When the count restarts, some newer frames overtake older ones once.
    fn next_priority(&self) -> i32 {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed);
        BULK_PRIORITY - (sent & PRIORITY_MASK) as i32
    }
}

impl From<WriteError> for SendError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Refused(code),
            WriteError::ConnectionLost(error) => Self::Connection(error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::Closed,
        }
    }
}

impl From<StoppedError> for SendError {
    fn from(error: StoppedError) -> Self {
        match error {
            StoppedError::ConnectionLost(error) => Self::Connection(error),
            StoppedError::ZeroRttRejected => Self::Closed,
        }
    }
}

impl From<ClosedStream> for SendError {
    fn from(_: ClosedStream) -> Self {
        Self::Closed
    }
}
