//! Typed messages over one bidirectional stream.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::frame::FrameReader;
use super::hello::{self, HELLO_DEADLINE};
use super::{CloseCode, ControlMessage, DecodeError, FrameError, Hello, HelloError, decode, encode};
use crate::transport::Nudging;

/// Maximum queued messages of one channel. A session sends a few per second, so a full queue means that the
/// peer has accepted none for a minute.
pub const QUEUE_MESSAGES_MAX: usize = 256;

/// Maximum queued bytes of one channel: two of the longest messages.
pub const QUEUE_BYTES_MAX: usize = 2 * super::CONTROL_FRAME_BYTES_MAX;

/// Timeout for delivery of the last bytes before this side closes.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(5);
/// Timeout for the peer to close after its last message.
const HANG_UP_DEADLINE: Duration = Duration::from_secs(1);

/// Reasons why a channel ended. The connection is then closed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection is closed, for the contained reason.
    #[error("the connection is closed: {0}")]
    Connection(#[from] ConnectionError),
    /// The hello exchange failed.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer's frames are invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame of the peer is not a valid message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ControlError {
    /// Whether the two sides run incompatible releases; retries are useless.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        match self {
            Self::Hello(HelloError::Version { .. }) => true,
            Self::Connection(error) => CloseCode::Version.closed(error),
            _ => false,
        }
    }

    /// Whether the peer rejects this side as a stranger or as revoked; retries are useless.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        matches!(self, Self::Connection(error) if CloseCode::Stranger.closed(error))
    }
}

/// Reasons why a message was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue is full; the connection is now closed with [`CloseCode::TooSlow`].
    #[error("the peer takes messages too slowly")]
    TooSlow,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The message exceeds the limit of its type.
    #[error("a message of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// postcard cannot encode it.
    #[error("the message cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
}

/// Opens the stream and exchanges hellos: the worker's part.
///
/// # Errors
/// [`ControlError`]; the connection is then closed.
pub async fn open<S: ControlMessage, R: ControlMessage>(
    connection: &Connection,
) -> Result<(ControlSender<S>, ControlReceiver<R>), ControlError> {
    let (sink, source) = connection.open_bi().await?;
    begin(connection, sink, source).await
}

/// Accepts the stream and exchanges hellos: the coordinator's part.
///
/// # Errors
/// [`ControlError`]; the connection is then closed.
pub async fn accept<S: ControlMessage, R: ControlMessage>(
    connection: &Connection,
) -> Result<(ControlSender<S>, ControlReceiver<R>), ControlError> {
    let Ok(stream) = timeout(HELLO_DEADLINE, connection.accept_bi()).await else {
        let silent = HelloError::Silent;
        CloseCode::Protocol.close(connection, &silent.to_string());
        return Err(silent.into());
    };
    let (sink, source) = stream?;
    begin(connection, sink, source).await
}

async fn begin<S: ControlMessage, R: ControlMessage>(
    connection: &Connection,
    mut sink: SendStream,
    mut source: RecvStream,
) -> Result<(ControlSender<S>, ControlReceiver<R>), ControlError> {
    let peer = match hello::exchange(Hello::ours(), &mut sink, &mut source).await {
        Ok(peer) => peer,
        Err(error) => return Err(part(connection, sink, error).await),
    };
    let frames = FrameReader::new(source, R::BYTES_MAX);
    let receiver = ControlReceiver {
        connection: connection.clone(),
        peer,
        frames,
        _nudging: Nudging::of(connection),
        message: PhantomData,
    };
    Ok((ControlSender::spawn(connection.clone(), sink), receiver))
}

/// Closes the connection after a failed hello exchange. Returns the reason, as far as known.
async fn part(connection: &Connection, mut sink: SendStream, error: HelloError) -> ControlError {
    let code = match error {
        HelloError::Version { .. } => CloseCode::Version,
        _ => CloseCode::Protocol,
    };
    // The peer should receive this side's hello before the close overtakes it.
    farewell(&mut sink).await;
    let closed = connection.close_reason();
    code.close(connection, &error.to_string());
    match (error, closed) {
        (HelloError::Stream(_), Some(reason)) => reason.into(),
        (error, _) => error.into(),
    }
}

/// Finishes a stream and waits for its delivery, with a timeout.
async fn farewell(sink: &mut SendStream) {
    if sink.finish().is_ok() {
        // The caller closes the connection in either case.
        let _ = timeout(FAREWELL_DEADLINE, sink.stopped()).await;
    }
}

/// The sending half. Messages are queued, so that senders never wait for the network.
///
/// After a drop, queued messages are still sent while the connection lives.
#[derive(Debug)]
pub struct ControlSender<T> {
    connection: Connection,
    queue: mpsc::Sender<Bytes>,
    queued_bytes: Arc<AtomicUsize>,
    writer: JoinHandle<()>,
    message: PhantomData<fn(T)>,
}

impl<T: ControlMessage> ControlSender<T> {
    fn spawn(connection: Connection, sink: SendStream) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_MESSAGES_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let writer = tokio::spawn(write(sink, queued, queued_bytes.clone()));
        Self { connection, queue, queued_bytes, writer, message: PhantomData }
    }

    /// Queues a message without waiting. If the queue is full, the connection is closed: a peer that does not
    /// keep up must reconnect and catch up.
    ///
    /// # Errors
    /// [`SendError`]; the message will not arrive.
    pub fn send(&self, message: &T) -> Result<(), SendError> {
        let body = Bytes::from(encode(message)?);
        let bytes = body.len();
        if bytes > T::BYTES_MAX {
            return Err(SendError::TooLong { bytes, bytes_max: T::BYTES_MAX });
        }
        if self.queued_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > QUEUE_BYTES_MAX {
            return Err(self.give_up());
        }
        self.queue.try_send(body).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.give_up(),
            mpsc::error::TrySendError::Closed(_) => SendError::Closed,
        })
    }

    /// Returns a counter of the peer's acknowledgements, which shows whether messages arrive.
    #[must_use]
    pub fn ear(&self) -> Ear {
        Ear(self.connection.clone())
    }

    /// Whether the peer closes the connection within a moment because another connection with this side's
    /// identity has replaced it.
    pub async fn was_replaced(&self) -> bool {
        let closed = timeout(HANG_UP_DEADLINE, self.connection.closed()).await;
        closed.is_ok_and(|error| CloseCode::Replaced.closed(&error))
    }

    /// Sends the queue, waits a few seconds at most for delivery, and ends the stream.
    pub async fn finish(self) {
        drop(self.queue);
        let mut writer = self.writer;
        if timeout(2 * FAREWELL_DEADLINE, &mut writer).await.is_err() {
            writer.abort();
        }
    }

    fn give_up(&self) -> SendError {
        CloseCode::TooSlow.close(&self.connection, &SendError::TooSlow.to_string());
        SendError::TooSlow
    }
}

/// Delivery status of a connection.
#[derive(Clone, Debug)]
pub struct Ear(Connection);

impl Ear {
    /// Returns the number of acknowledgements received.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.0.stats().frame_rx.acks
    }

    /// Returns the round-trip time.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.0.rtt()
    }
}

/// Writes queued frames until the queue or the stream ends.
async fn write(mut sink: SendStream, mut queued: mpsc::Receiver<Bytes>, queued_bytes: Arc<AtomicUsize>) {
    while let Some(body) = queued.recv().await {
        let bytes = body.len();
        // `send` has checked it against a limit far below 4 GiB.
        let head = Bytes::copy_from_slice(&(bytes as u32).to_le_bytes());
        if sink.write_all_chunks(&mut [head, body]).await.is_err() {
            // The receiving half reports the lost connection.
            return;
        }
        queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
    farewell(&mut sink).await;
}

/// The receiving half.
#[derive(Debug)]
pub struct ControlReceiver<T> {
    connection: Connection,
    peer: Hello,
    frames: FrameReader<RecvStream>,
    _nudging: Nudging,
    message: PhantomData<fn() -> T>,
}

impl<T: ControlMessage> ControlReceiver<T> {
    /// Returns the peer's hello.
    #[must_use]
    pub fn peer(&self) -> &Hello {
        &self.peer
    }

    /// Receives the next message; `None`: the peer has ended the stream. Cancel-safe: it can be dropped at
    /// any await without losing a byte.
    ///
    /// # Errors
    /// [`ControlError`]; the connection is then closed.
    pub async fn receive(&mut self) -> Result<Option<T>, ControlError> {
        let received = match self.frames.next().await {
            Ok(Some(frame)) => decode(&frame).map(Some).map_err(ControlError::from),
            Ok(None) => Ok(None),
            Err(error) => match self.connection.close_reason() {
                Some(reason) => Err(reason.into()),
                None => Err(error.into()),
            },
        };
        if let Err(error) = &received {
            CloseCode::Protocol.close(&self.connection, &error.to_string());
        }
        received
    }
}
