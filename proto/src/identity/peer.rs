//! Identity of a connection's peer.

use longhaul_common::id::{RunId, WorkerId};
use quinn::Connection;
use rustls::pki_types::CertificateDer;

use super::{NameError, PeerName};

/// Errors of a peer's identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The peer presented no certificate.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// The certificate names no member of this run.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The peer is of this run but not a worker.
    #[error("the peer is the coordinator, not a worker")]
    NotAWorker,
}

/// Returns the name in the peer's certificate. TLS has checked the signature of the run's authority.
///
/// # Errors
/// [`PeerError`]
pub fn peer_name(connection: &Connection, run: RunId) -> Result<PeerName, PeerError> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(PeerError::NoCertificate)?;
    let certificate = chain.first().ok_or(PeerError::NoCertificate)?;
    Ok(PeerName::of_certificate(certificate, run)?)
}

/// Returns the worker that the peer's certificate names. The caller checks its membership.
///
/// # Errors
/// [`PeerError`]
pub fn peer_worker(connection: &Connection, run: RunId) -> Result<WorkerId, PeerError> {
    match peer_name(connection, run)? {
        PeerName::Worker(worker) => Ok(worker),
        PeerName::Coordinator => Err(PeerError::NotAWorker),
    }
}
