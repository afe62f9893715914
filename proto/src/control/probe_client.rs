//! A look at a coordinator from where a worker is to run.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use quinn::{ConnectError, Connection, ConnectionError, Endpoint, TransportErrorCode, WriteError};
use tokio::time::{Instant, timeout};

use super::probe::{PROBE_STREAMS, PROBE_UPLOAD_MAX};
use super::{
    CloseCode, ControlError, ControlReceiver, ControlSender, FromDesk, Hello, HelloError, ProbeReply,
    ProbeRequest, STRANGER_WINDOW_BYTES, ToDesk, open,
};
use crate::identity::{
    ALERT_UNKNOWN_CA, COORDINATOR_OF_ANY_RUN, Fingerprint, TlsError, is_out_of_date, probe_client,
};
use crate::transport;

/// How long a coordinator may take to answer a dialler: four attempts, at 0, 1, 3 and 7 seconds.
pub const PROBE_DIAL_MAX: Duration = Duration::from_secs(8);

/// How long an answer may take that the coordinator gives at once: several retransmissions on a long link.
const PROBE_REPLY_MAX: Duration = Duration::from_secs(5);

/// A conversation with a coordinator that needs no token and changes nothing there.
#[derive(Debug)]
pub struct Probe {
    connection: Connection,
    sender: ControlSender<ToDesk>,
    receiver: ControlReceiver<FromDesk>,
}

/// One message there and back.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// From the question to the answer.
    pub round_trip: Duration,
    /// The coordinator's clock in between: milliseconds of Unix time.
    pub unix_ms: u64,
}

/// What the coordinator saw of an upload.
#[derive(Clone, Copy, Debug)]
pub struct Upload {
    /// Bytes that arrived, at most [`super::PROBE_BYTES_MAX`].
    pub bytes: u64,
    /// From the first to the last.
    pub span: Duration,
}

/// Why a probe learnt nothing more.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The address cannot be dialled.
    #[error("{address} cannot be dialled: {source}")]
    Dial {
        /// Who was to be dialled.
        address: SocketAddr,
        /// Why not.
        source: ConnectError,
    },
    /// Nobody answered.
    #[error("nobody answers")]
    Silent,
    /// The coordinator has too many visitors.
    #[error("the coordinator has too many visitors at the moment")]
    Busy,
    /// Somebody else answered.
    #[error("what answers is not a coordinator: {reason}")]
    NotACoordinator {
        /// How that shows.
        reason: String,
    },
    /// A coordinator of another authority answered.
    #[error("the coordinator is not the one that made the token")]
    WrongCoordinator,
    /// Its certificate is not valid by this machine's clock.
    #[error("the coordinator's certificate is not valid at this machine's time")]
    OutOfDate,
    /// It speaks another version.
    #[error("this is {ours}, the coordinator is {theirs}")]
    Version {
        /// This side.
        ours: Hello,
        /// The coordinator.
        theirs: Hello,
    },
    /// The conversation broke off.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The coordinator's answer is not to what was asked, or there is none.
    #[error("the coordinator hung up, or answered something else")]
    NoReply,
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Probe {
    /// Dials a coordinator. With a token's `authority`, it must be that token's; else anyone is believed, as nothing is said
    /// that others should not hear, and nothing is done on the strength of what is heard.
    ///
    /// # Errors
    /// [`ProbeError`]
    pub async fn dial(
        endpoint: &Endpoint,
        address: SocketAddr,
        authority: Option<Fingerprint>,
    ) -> Result<Self, ProbeError> {
        let config = transport::client_config(probe_client(authority)?);
        let connecting = endpoint
            .connect_with(config, address, COORDINATOR_OF_ANY_RUN)
            .map_err(|source| ProbeError::Dial { address, source })?;
        let connected = timeout(PROBE_DIAL_MAX, connecting).await.map_err(|_| ProbeError::Silent)?;
        let connection = connected.map_err(handshake_failed)?;
        let (sender, receiver) = open(&connection).await.map_err(conversation_failed)?;
        Ok(Self { connection, sender, receiver })
    }

    /// What the coordinator says of itself.
    #[must_use]
    pub fn coordinator(&self) -> &Hello {
        self.receiver.peer()
    }

    /// Asks for the time, and measures how long that takes.
    ///
    /// # Errors
    /// [`ProbeError`]
    pub async fn echo(&mut self) -> Result<Echo, ProbeError> {
        let begun = Instant::now();
        match self.ask(ProbeRequest::Echo, PROBE_REPLY_MAX).await? {
            ProbeReply::Echo { unix_ms } => Ok(Echo { round_trip: begun.elapsed(), unix_ms }),
            _ => Err(ProbeError::NoReply),
        }
    }

    /// Sends for [`PROBE_UPLOAD_MAX`], but no more than [`super::PROBE_BYTES_MAX`]. Works once.
    ///
    /// # Errors
    /// [`ProbeError::Busy`] if too many others do the same; else as ever.
    pub async fn upload(&mut self) -> Result<Upload, ProbeError> {
        let connection = self.connection.clone();
        let reply = tokio::select! {
            reply = self.ask(ProbeRequest::Upload, PROBE_UPLOAD_MAX + PROBE_REPLY_MAX) => reply?,
            () = async {
                // If that fails, the answer says why.
                let _ = push(&connection).await;
                pending().await
            } => return Err(ProbeError::NoReply),
        };
        match reply {
            ProbeReply::Uploaded { bytes, span_us } => {
                Ok(Upload { bytes, span: Duration::from_micros(span_us) })
            }
            ProbeReply::Busy => Err(ProbeError::Busy),
            ProbeReply::Echo { .. } => Err(ProbeError::NoReply),
        }
    }

    /// Takes leave.
    pub async fn finish(self) {
        self.sender.finish().await;
        CloseCode::Done.close(&self.connection, "");
    }

    async fn ask(&mut self, request: ProbeRequest, patience: Duration) -> Result<ProbeReply, ProbeError> {
        // If it is not taken, the connection is closed, and the receiving half says why.
        let _ = self.sender.send(&ToDesk::Probe(request));
        match timeout(patience, self.receiver.receive()).await.map_err(|_| ProbeError::Silent)?? {
            Some(FromDesk::Probe(reply)) => Ok(reply),
            Some(FromDesk::Enrol(_)) | None => Err(ProbeError::NoReply),
        }
    }
}

/// Fills the streams, one after another, as fast as congestion control lets them drain.
async fn push(connection: &Connection) -> Result<(), WriteError> {
    let bytes = vec![0; STRANGER_WINDOW_BYTES as usize];
    for _ in 0..PROBE_STREAMS {
        let mut stream = connection.open_uni().await?;
        stream.write_all(&bytes).await?;
        // It cannot have been finished before.
        let _ = stream.finish();
    }
    Ok(())
}

fn handshake_failed(error: ConnectionError) -> ProbeError {
    match &error {
        ConnectionError::TimedOut => ProbeError::Silent,
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
        {
            ProbeError::Busy
        }
        error if is_out_of_date(error) => ProbeError::OutOfDate,
        ConnectionError::TransportError(cause) => match cause.code {
            code if code == TransportErrorCode::crypto(ALERT_UNKNOWN_CA) => ProbeError::WrongCoordinator,
            _ => ProbeError::NotACoordinator { reason: error.to_string() },
        },
        _ => ProbeError::NotACoordinator { reason: error.to_string() },
    }
}

fn conversation_failed(error: ControlError) -> ProbeError {
    match error {
        ControlError::Hello(HelloError::Version { ours, theirs }) => ProbeError::Version { ours, theirs },
        ControlError::Hello(HelloError::NotLonghaul | HelloError::Silent) => {
            ProbeError::NotACoordinator { reason: error.to_string() }
        }
        error => ProbeError::Control(error),
    }
}
