//! Who is at the other end of a connection.

use longhaul_common::id::{RunId, WorkerId};
use quinn::Connection;
use rustls::pki_types::CertificateDer;

use super::{NameError, PeerName};

/// A peer that is not who it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It showed no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// Its certificate names nobody of this run.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is of this run, but no worker.
    #[error("the peer is the coordinator, not a worker")]
    NotAWorker,
}

/// Whom the peer's certificate names. TLS has checked that the run's authority signed it.
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

/// The worker that the peer's certificate names. Whether it is a live member is for the caller to check.
///
/// # Errors
/// [`PeerError`]
pub fn peer_worker(connection: &Connection, run: RunId) -> Result<WorkerId, PeerError> {
    match peer_name(connection, run)? {
        PeerName::Worker(worker) => Ok(worker),
        PeerName::Coordinator => Err(PeerError::NotAWorker),
    }
}
