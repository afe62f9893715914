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

/// Messages that wait to be sent on one channel. A session says a few a second, so a queue of this length means that
/// the peer has not taken any for a minute.
pub const QUEUE_MESSAGES_MAX: usize = 256;

/// Bytes that wait to be sent on one channel: two of the longest messages.
pub const QUEUE_BYTES_MAX: usize = 2 * super::CONTROL_FRAME_BYTES_MAX;

/// How long the last bytes may take to reach the peer before this side hangs up.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(5);
/// How long a peer may take between its last word and hanging up.
const HANG_UP_DEADLINE: Duration = Duration::from_secs(1);

/// Why nothing more is heard, or was said, on a channel. The connection is closed then.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection is closed; the peer's reason is in it.
    #[error("the connection is closed: {0}")]
    Connection(#[from] ConnectionError),
    /// The conversation did not begin.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The peer's frames are not as they should be.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame of the peer is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ControlError {
    /// Whether the two sides are of releases that do not understand each other: trying again is of no use.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        match self {
            Self::Hello(HelloError::Version { .. }) => true,
            Self::Connection(error) => CloseCode::Version.closed(error),
            _ => false,
        }
    }

    /// Whether the peer takes this side for a stranger, or for one who is out of the run: trying again is of no use.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        matches!(self, Self::Connection(error) if CloseCode::Stranger.closed(error))
    }
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue is full; the connection is now closed with [`CloseCode::TooSlow`].
    #[error("the peer takes messages too slowly")]
    TooSlow,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The message is longer than its type allows.
    #[error("a message of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// postcard cannot write it.
    #[error("the message cannot be written: {0}")]
    Encode(#[from] postcard::Error),
}

/// Opens the stream and says hello: the worker's part.
///
/// # Errors
/// [`ControlError`]; the connection is closed then.
pub async fn open<S: ControlMessage, R: ControlMessage>(
    connection: &Connection,
) -> Result<(ControlSender<S>, ControlReceiver<R>), ControlError> {
    let (sink, source) = connection.open_bi().await?;
    begin(connection, sink, source).await
}

/// Waits for the stream and says hello: the coordinator's part.
///
/// # Errors
/// [`ControlError`]; the connection is closed then.
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

/// Hangs up on a peer with which no conversation came about. Why, as far as this side can say.
async fn part(connection: &Connection, mut sink: SendStream, error: HelloError) -> ControlError {
    let code = match error {
        HelloError::Version { .. } => CloseCode::Version,
        _ => CloseCode::Protocol,
    };
    // The peer should read this side's hello before the close overtakes it.
    farewell(&mut sink).await;
    let closed = connection.close_reason();
    code.close(connection, &error.to_string());
    match (error, closed) {
        (HelloError::Stream(_), Some(reason)) => reason.into(),
        (error, _) => error.into(),
    }
}

/// Ends a stream and waits until the peer has all of it, but not for ever.
async fn farewell(sink: &mut SendStream) {
    if sink.finish().is_ok() {
        // Whether it has come to an end or not, the caller hangs up next.
        let _ = timeout(FAREWELL_DEADLINE, sink.stopped()).await;
    }
}

/// The sending half. Messages are queued, so that whoever decides never waits for a network.
///
/// When it is dropped, what is queued is still sent, as long as the connection lives.
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

    /// Queues a message. Never waits: if the queue is full, the connection is closed, as a peer that does not keep up
    /// must come back and catch up.
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

    /// Counts the peer's acknowledgements. So who says something now and then sees whether it is heard.
    #[must_use]
    pub fn ear(&self) -> Ear {
        Ear(self.connection.clone())
    }

    /// Whether the peer has closed the connection, or does so within a moment, as another one with this side's identity has taken its place.
    pub async fn was_replaced(&self) -> bool {
        let closed = timeout(HANG_UP_DEADLINE, self.connection.closed()).await;
        closed.is_ok_and(|error| CloseCode::Replaced.closed(&error))
    }

    /// Sends what is queued, waits until the peer has it (but a few seconds at most), and ends the stream.
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

/// Whether what is said over a connection is heard.
#[derive(Clone, Debug)]
pub struct Ear(Connection);

impl Ear {
    /// Acknowledgements that have come so far.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.0.stats().frame_rx.acks
    }

    /// How long an acknowledgement takes.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.0.rtt()
    }
}

/// Writes frames as they are queued, until the queue or the stream ends.
async fn write(mut sink: SendStream, mut queued: mpsc::Receiver<Bytes>, queued_bytes: Arc<AtomicUsize>) {
    while let Some(body) = queued.recv().await {
        let bytes = body.len();
        // `send` has checked it against a limit far below 4 GiB.
        let head = Bytes::copy_from_slice(&(bytes as u32).to_le_bytes());
        if sink.write_all_chunks(&mut [head, body]).await.is_err() {
            // The connection is lost, which the receiving half reports.
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
    /// What the peer said of itself.
    #[must_use]
    pub fn peer(&self) -> &Hello {
        &self.peer
    }

    /// The next message. None: the peer has ended the conversation. May stand in a `select!`: it can be dropped at any
    /// await without losing a byte.
    ///
    /// # Errors
    /// [`ControlError`]; the connection is closed then.
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
