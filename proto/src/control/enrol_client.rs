//! Enrolment, the worker's side.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectError, Connection, ConnectionError, Endpoint, TransportErrorCode};
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use super::{
    CloseCode, ControlError, ENROL_DEADLINE, EnrolRefusal, EnrolReply, EnrolRequest, FromDesk, Grounds,
    ToDesk, open,
};
use crate::identity::{
    ALERT_UNKNOWN_CA, AuthorityError, COORDINATOR_OF_ANY_RUN, Exporter, ExporterError, Fingerprint, Identity,
    IdentityError, PeerName, TlsError, Token, WorkerKey, enrol_client, is_out_of_date, renew_client,
};

/// Reasons why a worker got no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The coordinator at this address is not the token's.
    #[error(
        "the coordinator at {address} is not the one that made the token: correct the address, or take a token of this \
         coordinator (`coordinator token create`, where it runs, prints one)"
    )]
    WrongCoordinator {
        /// Address dialled.
        address: SocketAddr,
    },
    /// The coordinator's certificate is not valid by this machine's clock.
    #[error(
        "the coordinator's certificate has expired, or is not valid yet, by this machine's clock ({}): set the clocks of both \
         machines right; `worker doctor` compares them",
        .0
    )]
    OutOfDate(ConnectionError),
    /// The coordinator refused.
    #[error("the coordinator refuses: {0}")]
    Refused(EnrolRefusal),
    /// The address cannot be dialled.
    #[error("{address} cannot be dialled: {source}")]
    Dial {
        /// Address to dial.
        address: SocketAddr,
        /// Cause.
        source: ConnectError,
    },
    /// No response, or the connection was lost.
    #[error("no connection to the coordinator: {0}")]
    Connection(#[from] ConnectionError),
    /// The exchange failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The coordinator did not reply in time.
    #[error("the coordinator did not answer within {} s", ENROL_DEADLINE.as_secs())]
    Slow,
    /// The stream ended without a reply.
    #[error("the coordinator closed the connection without a reply")]
    NoReply,
    /// The certificate issued is not the one requested.
    #[error("the coordinator issued an unusable certificate: {0}")]
    Issued(#[from] IdentityError),
    /// Key generation failed.
    #[error(transparent)]
    Key(#[from] AuthorityError),
    /// TLS setup failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The session has no exporter to bind the proof to.
    #[error(transparent)]
    Exporter(#[from] ExporterError),
}

impl EnrolError {
    /// Whether a retry with the same token or identity is useless.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::WrongCoordinator { .. } | Self::Refused(_) | Self::Issued(_) => true,
            Self::Control(error) => error.is_other_version(),
            Self::Connection(error) => CloseCode::Version.closed(error),
            _ => false,
        }
    }
}

/// Enrols with a token. The key is generated here and never leaves.
///
/// # Errors
/// [`EnrolError`]; [`EnrolError::is_final`] tells whether to retry.
pub async fn enrol(
    endpoint: &Endpoint,
    coordinator: SocketAddr,
    token: &Token,
    site: &str,
) -> Result<Identity, EnrolError> {
    let conversation = async {
        let tls = enrol_client(token.authority)?;
        let connection = dial(endpoint, coordinator, tls, COORDINATOR_OF_ANY_RUN).await?;
        let exporter = Exporter::of(&connection)?;
        let prove =
            |request: &[u8]| Grounds::Token { id: token.id, proof: token.secret.prove(&exporter, request) };
        ask(&connection, prove, site, token.authority).await
    };
    timeout(ENROL_DEADLINE, conversation).await.unwrap_or(Err(EnrolError::Slow))
}

/// Renews a certificate, with a new key, by one that has not expired.
///
/// # Errors
/// [`EnrolError`]; [`EnrolError::is_final`] tells whether to retry.
pub async fn renew(
    endpoint: &Endpoint,
    coordinator: SocketAddr,
    identity: &Identity,
    site: &str,
) -> Result<Identity, EnrolError> {
    let conversation = async {
        let name = PeerName::Coordinator.in_run(identity.run());
        let connection = dial(endpoint, coordinator, renew_client(identity)?, &name).await?;
        ask(&connection, |_| Grounds::Renewal, site, Fingerprint::of(identity.authority())).await
    };
    timeout(ENROL_DEADLINE, conversation).await.unwrap_or(Err(EnrolError::Slow))
}

async fn dial(
    endpoint: &Endpoint,
    address: SocketAddr,
    tls: Arc<QuicClientConfig>,
    name: &str,
) -> Result<Connection, EnrolError> {
    let connecting = endpoint
        .connect_with(ClientConfig::new(tls), address, name)
        .map_err(|source| EnrolError::Dial { address, source })?;
    connecting.await.map_err(|error| match error {
        ConnectionError::TransportError(ref cause)
            if cause.code == TransportErrorCode::crypto(ALERT_UNKNOWN_CA) =>
        {
            EnrolError::WrongCoordinator { address }
        }
        error if is_out_of_date(&error) => EnrolError::OutOfDate(error),
        error => EnrolError::Connection(error),
    })
}

/// Requests a certificate for a new key and checks the result.
async fn ask(
    connection: &Connection,
    grounds: impl FnOnce(&[u8]) -> Grounds,
    site: &str,
    authority: Fingerprint,
) -> Result<Identity, EnrolError> {
    let key = WorkerKey::generate()?;
    let request = key.request()?;
    let (sender, mut receiver) = open::<ToDesk, FromDesk>(connection).await?;
    let message = EnrolRequest { grounds: grounds(&request), request, site: site.to_owned() };
    // On failure the connection is closed, and the receiving half reports the reason.
    let _ = sender.send(&ToDesk::Enrol(message));
    let Some(FromDesk::Enrol(reply)) = receiver.receive().await? else {
        return Err(EnrolError::NoReply);
    };
    sender.finish().await;
    CloseCode::Done.close(connection, "");
    match reply {
        EnrolReply::Refused(refusal) => Err(EnrolError::Refused(refusal)),
        EnrolReply::Admitted { certificate, authority: issuer } => {
            let issuer = CertificateDer::from(issuer);
            if Fingerprint::of(&issuer) != authority {
                return Err(IdentityError::NoAuthority.into());
            }
            Ok(Identity::new(certificate.into(), issuer, key.to_pkcs8())?)
        }
    }
}
