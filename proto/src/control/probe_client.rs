//! Probes of a coordinator from the machine of a future worker.

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

/// Timeout of dialling a coordinator: four attempts, at 0, 1, 3 and 7 seconds.
pub const PROBE_DIAL_MAX: Duration = Duration::from_secs(8);

/// Timeout of an immediate reply: several retransmissions on a long link.
const PROBE_REPLY_MAX: Duration = Duration::from_secs(5);

/// A connection to a coordinator that needs no token and changes nothing there.
#[derive(Debug)]
pub struct Probe {
    connection: Connection,
    sender: ControlSender<ToDesk>,
    receiver: ControlReceiver<FromDesk>,
}

/// One round trip.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// Time from request to reply.
    pub round_trip: Duration,
    /// The coordinator's clock in between: milliseconds of Unix time.
    pub unix_ms: u64,
}

/// Upload as measured by the coordinator.
#[derive(Clone, Copy, Debug)]
pub struct Upload {
    /// Bytes received, at most [`super::PROBE_BYTES_MAX`].
    pub bytes: u64,
    /// Time from the first to the last.
    pub span: Duration,
}

/// Reasons why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The address cannot be dialled.
    #[error("{address} cannot be dialled: {source}")]
    Dial {
        /// Address to dial.
        address: SocketAddr,
        /// Cause.
        source: ConnectError,
    },
    /// No response.
    #[error("no response")]
    Silent,
    /// The coordinator serves too many probes.
    #[error("the coordinator is serving too many probes; try again later")]
    Busy,
    /// The peer is not a coordinator.
    #[error("what answers is not a coordinator: {reason}")]
    NotACoordinator {
        /// Symptom.
        reason: String,
    },
    /// A coordinator of another authority responded.
    #[error("the coordinator is not the one that made the token")]
    WrongCoordinator,
    /// The coordinator's certificate is not valid by this machine's clock.
    #[error("the coordinator's certificate is not valid at this machine's time")]
    OutOfDate,
    /// The coordinator has another version.
    #[error("this is {ours}, the coordinator is {theirs}")]
    Version {
        /// This side.
        ours: Hello,
        /// The coordinator.
        theirs: Hello,
    },
    /// The exchange failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The reply is missing or of another kind.
    #[error("the coordinator closed the connection or sent an unexpected reply")]
    NoReply,
    /// TLS setup failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Probe {
    /// Dials a coordinator. With a token's `authority` it must be that token's; otherwise any is trusted, as
    /// no secret is sent and no action depends on the replies.
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

    /// Returns the coordinator's hello.
    #[must_use]
    pub fn coordinator(&self) -> &Hello {
        self.receiver.peer()
    }

    /// Requests the time and measures the round trip.
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

    /// Sends for [`PROBE_UPLOAD_MAX`], but at most [`super::PROBE_BYTES_MAX`]. Works once.
    ///
    /// # Errors
    /// [`ProbeError::Busy`] if too many other uploads are in progress; otherwise as for [`Self::echo`].
    pub async fn upload(&mut self) -> Result<Upload, ProbeError> {
        let connection = self.connection.clone();
        let reply = tokio::select! {
            reply = self.ask(ProbeRequest::Upload, PROBE_UPLOAD_MAX + PROBE_REPLY_MAX) => reply?,
            () = async {
                // If that fails, the reply tells the reason.
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

    /// Closes the connection.
    pub async fn finish(self) {
        self.sender.finish().await;
        CloseCode::Done.close(&self.connection, "");
    }

    async fn ask(&mut self, request: ProbeRequest, patience: Duration) -> Result<ProbeReply, ProbeError> {
        // On failure the connection is closed, and the receiving half reports the reason.
        let _ = self.sender.send(&ToDesk::Probe(request));
        match timeout(patience, self.receiver.receive()).await.map_err(|_| ProbeError::Silent)?? {
            Some(FromDesk::Probe(reply)) => Ok(reply),
            Some(FromDesk::Enrol(_)) | None => Err(ProbeError::NoReply),
        }
    }
}

/// Fills the streams, one after another, as fast as congestion control permits.
async fn push(connection: &Connection) -> Result<(), WriteError> {
    let bytes = vec![0; STRANGER_WINDOW_BYTES as usize];
    for _ in 0..PROBE_STREAMS {
        let mut stream = connection.open_uni().await?;
        stream.write_all(&bytes).await?;
        // The stream is not finished yet, so this cannot fail.
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
