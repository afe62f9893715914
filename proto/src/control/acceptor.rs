//! Where the coordinator's connections come in.

use std::sync::Arc;

use longhaul_common::id::{RunId, WorkerId};
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Incoming, TransportConfig, VarInt};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{CloseCode, ENROL_DEADLINE, PROBE_UPLOADS_MAX};
use crate::identity::{ALPN_ENROL, PeerError, peer_worker};
use crate::transport::{HandshakeError, Place, Strangers};

/// Connections of peers that have not shown who they are, handshakes included; of one address a quarter. With [`STRANGER_WINDOW_BYTES`] they hold
/// 32 MiB at most; a whole cluster that starts at once gets in by trying again.
pub const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 128;

/// What a peer may send on its one stream before somebody reads it, in bytes: 256 KiB, which passes reports at
/// megabytes a second over the longest links.
pub const STRANGER_WINDOW_BYTES: u32 = 256 << 10;

/// Lets workers of the run in, strangers only as far as the enrolment desk, and not too many of those at a time.
/// Clones share the count.
#[derive(Clone, Debug)]
pub struct Acceptor {
    run: RunId,
    strangers: Strangers,
    uploads: Arc<Semaphore>,
}

/// Somebody who came through the door.
#[derive(Debug)]
pub enum AuthenticatedPeer {
    /// With a certificate of this run, for the control channel. Whether it is still welcome is for the caller to check.
    Worker {
        /// Whom the certificate names.
        worker: WorkerId,
        /// The connection; [`super::accept`] comes next.
        connection: Connection,
    },
    /// To enrol, or to probe: [`super::serve_enrol`] comes next.
    Applicant(Applicant),
}

/// A connection on which one request to enrol may be made, or a probe.
#[derive(Debug)]
pub struct Applicant {
    pub(super) connection: Connection,
    /// Whom its certificate names, if it showed one: then it is here to renew it.
    pub(super) worker: Option<WorkerId>,
    /// When the connection is closed, wherever the conversation is.
    pub(super) deadline: Instant,
    /// Where a probe's upload takes its place.
    pub(super) uploads: Arc<Semaphore>,
    /// Its place among the strangers.
    pub(super) _place: Place,
}

/// Why somebody was turned away.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// It never came to a connection.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// It wants the control channel, and is no worker of this run.
    #[error(transparent)]
    Stranger(#[from] PeerError),
}

impl AuthenticatedPeer {
    /// The connection, whatever the guest wants.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        match self {
            Self::Worker { connection, .. } | Self::Applicant(Applicant { connection, .. }) => connection,
        }
    }
}

impl Acceptor {
    /// The door of a run's coordinator.
    #[must_use]
    pub fn new(run: RunId) -> Self {
        Self {
            run,
            strangers: Strangers::new(UNAUTHENTICATED_CONNECTIONS_MAX),
            uploads: Arc::new(Semaphore::new(PROBE_UPLOADS_MAX)),
        }
    }

    /// Bounds what peers of the coordinator may make it hold: one stream, and [`STRANGER_WINDOW_BYTES`] on it.
    /// [`super::serve_enrol`] gives a probe's upload more for as long as it lasts.
    pub fn limit(&self, transport: &mut TransportConfig) {
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES));
    }

    /// Completes a handshake and looks at the certificate. Waits for the peer, so each call belongs in a task of its own.
    ///
    /// # Errors
    /// [`AcceptorError`]; the connection is closed then.
    pub async fn admit(&self, incoming: Incoming) -> Result<AuthenticatedPeer, AcceptorError> {
        let deadline = Instant::now() + ENROL_DEADLINE;
        let (connection, place) = self.strangers.shake_hands(incoming, deadline).await?;
        let worker = peer_worker(&connection, self.run);
        if alpn(&connection).as_deref() == Some(ALPN_ENROL) {
            return Ok(AuthenticatedPeer::Applicant(Applicant {
                connection,
                worker: worker.ok(),
                deadline,
                uploads: self.uploads.clone(),
                _place: place,
            }));
        }
        // Everything but enrolment takes a certificate.
        match worker {
            Ok(worker) => Ok(AuthenticatedPeer::Worker { worker, connection }),
            Err(error) => {
                CloseCode::Stranger.close(&connection, &error.to_string());
                Err(error.into())
            }
        }
    }
}

fn alpn(connection: &Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}
