//! Acceptor of the coordinator's incoming connections.

use std::sync::Arc;

use longhaul_common::id::{RunId, WorkerId};
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Incoming, TransportConfig, VarInt};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{CloseCode, ENROL_DEADLINE, PROBE_UPLOADS_MAX};
use crate::identity::{ALPN_ENROL, PeerError, peer_worker};
use crate::transport::{Admission, HandshakeError, Strangers};

/// Maximum connections of unauthenticated peers, handshakes included; a quarter per address. With
/// [`STRANGER_WINDOW_BYTES`] they hold at most 32 MiB. A whole cluster that starts at once connects by
/// retrying.
pub const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 128;

/// Receive window of a peer's single stream, in bytes: 256 KiB, which carries reports at megabytes per second
/// over the longest links.
pub const STRANGER_WINDOW_BYTES: u32 = 256 << 10;

/// Admits workers of the run; admits strangers only to enrolment, in bounded number. Clones share the count.
#[derive(Clone, Debug)]
pub struct Acceptor {
    run: RunId,
    strangers: Strangers,
    uploads: Arc<Semaphore>,
}

/// An admitted peer.
#[derive(Debug)]
pub enum AuthenticatedPeer {
    /// A peer with a certificate of this run, for the control channel. The caller checks for revocation.
    Worker {
        /// Worker that the certificate names.
        worker: WorkerId,
        /// The connection; [`super::accept`] comes next.
        connection: Connection,
    },
    /// A peer that enrols or probes: [`super::serve_enrol`] comes next.
    Applicant(Applicant),
}

/// A connection for one enrolment request or probe.
#[derive(Debug)]
pub struct Applicant {
    pub(super) connection: Connection,
    /// Worker that its certificate names, if presented for renewal.
    pub(super) worker: Option<WorkerId>,
    /// Time at which the connection is closed, in any state.
    pub(super) deadline: Instant,
    /// Slots for the uploads of probes.
    pub(super) uploads: Arc<Semaphore>,
    /// Its slot among the strangers.
    pub(super) _place: Admission,
}

/// Reasons to reject a peer.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer requests the control channel and is not a worker of this run.
    #[error(transparent)]
    Stranger(#[from] PeerError),
}

impl AuthenticatedPeer {
    /// Returns the connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        match self {
            Self::Worker { connection, .. } | Self::Applicant(Applicant { connection, .. }) => connection,
        }
    }
}

impl Acceptor {
    /// Creates the acceptor of a run's coordinator.
    #[must_use]
    pub fn new(run: RunId) -> Self {
        Self {
            run,
            strangers: Strangers::new(UNAUTHENTICATED_CONNECTIONS_MAX),
            uploads: Arc::new(Semaphore::new(PROBE_UPLOADS_MAX)),
        }
    }

    /// Bounds the memory that a peer can occupy: one stream with [`STRANGER_WINDOW_BYTES`].
    /// [`super::serve_enrol`] raises the bound during the upload of a probe.
    pub fn limit(&self, transport: &mut TransportConfig) {
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(1))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES));
    }

    /// Completes a handshake and checks the certificate. Waits for the peer, so each call needs its own task.
    ///
    /// # Errors
    /// [`AcceptorError`]; the connection is then closed.
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
        // Everything but enrolment requires a certificate.
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
