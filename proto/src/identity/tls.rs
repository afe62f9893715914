//! The TLS configurations: TLS 1.3 by ring. Tickets and early data are off, as they would break the binding
//! of enrolment proofs to their session.

use std::sync::Arc;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionError, TransportErrorCode};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::any_authority::AnyAuthority;
use super::pin::PinnedAuthority;
use super::verifier::Verifier;
use super::{ALPN_CONTROL, ALPN_DATA, ALPN_ENROL, Authority, AuthorityError, Fingerprint, Identity};

/// TLS alert `certificate_expired`, which rustls also raises for a certificate that is not valid yet (RFC 8446 §6.2).
pub(crate) const ALERT_CERTIFICATE_EXPIRED: u8 = 45;

/// TLS alert `unknown_ca` (RFC 8446 §6.2).
pub(crate) const ALERT_UNKNOWN_CA: u8 = 48;

/// Whether the peer closed because, by its clock, this side's certificate has expired or is not valid yet.
#[must_use]
pub fn is_refused_as_expired(error: &ConnectionError) -> bool {
    let expired = TransportErrorCode::crypto(ALERT_CERTIFICATE_EXPIRED);
    matches!(error, ConnectionError::ConnectionClosed(close) if close.error_code == expired)
}

/// Whether this side closed because, by this machine's clock, the peer's certificate has expired or is not
/// valid yet.
#[must_use]
pub fn is_out_of_date(error: &ConnectionError) -> bool {
    let expired = TransportErrorCode::crypto(ALERT_CERTIFICATE_EXPIRED);
    matches!(error, ConnectionError::TransportError(cause) if cause.code == expired)
}

/// Errors of TLS setup: in practice, damaged certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls rejects the certificate or the key.
    #[error("TLS cannot use the certificate: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority's certificate cannot be a trust anchor.
    #[error("TLS cannot trust the authority's certificate: {0}")]
    Anchor(#[from] VerifierBuilderError),
    /// ring lacks QUIC's initial cipher suite.
    #[error("TLS lacks QUIC's initial cipher suite: {0}")]
    Suite(#[from] NoInitialCipherSuite),
    /// The coordinator's own certificate could not be issued.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// Returns the configuration of a worker without certificate: trusts the authority with this fingerprint.
///
/// # Errors
/// [`TlsError`]
pub fn enrol_client(authority: Fingerprint) -> Result<Arc<QuicClientConfig>, TlsError> {
    client(Arc::new(Verifier::new(PinnedAuthority(authority), provider())), ALPN_ENROL, None)
}

/// Returns the configuration of a probe: as [`enrol_client`], or, without a fingerprint, with trust in any
/// server. No secret may then be sent, and no action may depend on the replies.
///
/// # Errors
/// [`TlsError`]
pub fn probe_client(authority: Option<Fingerprint>) -> Result<Arc<QuicClientConfig>, TlsError> {
    match authority {
        Some(authority) => enrol_client(authority),
        None => client(Arc::new(Verifier::new(AnyAuthority, provider())), ALPN_ENROL, None),
    }
}

/// Returns the configuration of a worker that renews its certificate.
///
/// # Errors
/// [`TlsError`]
pub fn renew_client(identity: &Identity) -> Result<Arc<QuicClientConfig>, TlsError> {
    client(server_verifier(identity.authority())?, ALPN_ENROL, Some(identity))
}

/// Returns the configuration of a worker that dials the coordinator. The server name is
/// [`super::PeerName::in_run`].
///
/// # Errors
/// [`TlsError`]
pub fn control_client(identity: &Identity) -> Result<Arc<QuicClientConfig>, TlsError> {
    client(server_verifier(identity.authority())?, ALPN_CONTROL, Some(identity))
}

/// Returns the configuration of a worker that dials another. The server name is [`super::PeerName::in_run`].
///
/// # Errors
/// [`TlsError`]
pub fn data_client(identity: &Identity) -> Result<Arc<QuicClientConfig>, TlsError> {
    client(server_verifier(identity.authority())?, ALPN_DATA, Some(identity))
}

/// Returns the configuration of a worker that others dial: only members of the run pass the handshake.
///
/// # Errors
/// [`TlsError`]
pub fn data_server(identity: &Identity) -> Result<Arc<QuicServerConfig>, TlsError> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(identity.authority())?, provider()).build()?;
    server(verifier, &[ALPN_DATA], identity.chain(), identity.key())
}

/// Returns the configuration of the coordinator, with a new certificate. Peers without certificate pass the
/// handshake, as they must enrol; [`crate::control::Acceptor`] permits them nothing else.
///
/// # Errors
/// [`TlsError`]
pub fn coordinator_server(authority: &Authority, now_unix_s: u64) -> Result<Arc<QuicServerConfig>, TlsError> {
    let (certificate, key) = authority.issue_coordinator(now_unix_s)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority.certificate())?, provider())
        .allow_unauthenticated()
        .build()?;
    let chain = vec![certificate, authority.certificate().clone()];
    server(verifier, &[ALPN_CONTROL, ALPN_ENROL], chain, key.into())
}

fn client(
    verifier: Arc<dyn ServerCertVerifier>,
    alpn: &[u8],
    identity: Option<&Identity>,
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_auth_cert(identity.chain(), identity.key())?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(QuicClientConfig::try_from(config)?))
}

fn server(
    verifier: Arc<dyn ClientCertVerifier>,
    alpns: &[&[u8]],
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<QuicServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = alpns.iter().map(|alpn| alpn.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(QuicServerConfig::try_from(config)?))
}

fn server_verifier(authority: &CertificateDer<'static>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    Ok(WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider()).build()?)
}

fn roots(authority: &CertificateDer<'static>) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(Arc::new(roots))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
