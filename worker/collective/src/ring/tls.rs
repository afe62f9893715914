use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use longhaul_common::id::RunId;
use longhaul_proto::identity::Identity;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// ALPN protocol of a site's connections: worker to worker, certificates on both sides.
const ALPN_SITE: &[u8] = b"longhaul-site";

/// A worker's certificate and trust anchor within its site: TLS 1.3 with the run's certificates, without tickets and early data.
#[derive(Clone)]
pub struct SiteTls {
    pub(super) run: RunId,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

/// Certificates that TLS cannot use.
#[derive(Debug, thiserror::Error)]
pub enum SiteTlsError {
    /// rustls refuses the certificate or the key.
    #[error("TLS cannot use the worker's certificate: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority's certificate cannot be a trust anchor.
    #[error("TLS cannot trust the authority's certificate: {0}")]
    Anchor(#[from] VerifierBuilderError),
}

impl SiteTls {
    /// Creates the configuration of a worker.
    ///
    /// # Errors
    /// [`SiteTlsError`] if rustls cannot use its parts.
    pub fn of(identity: &Identity) -> Result<Self, SiteTlsError> {
        let certificate = identity.certificate().clone();
        Self::new(identity.run(), certificate, identity.authority(), identity.private_key())
    }

    /// Creates it from a worker's certificate, the authority that issued it, and the certificate's key.
    ///
    /// # Errors
    /// [`SiteTlsError`] if they are damaged or do not belong together.
    pub fn new(
        run: RunId,
        certificate: CertificateDer<'static>,
        authority: &CertificateDer<'static>,
        key: &PrivatePkcs8KeyDer<'static>,
    ) -> Result<Self, SiteTlsError> {
        let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let chain = vec![certificate];
        let key = || PrivateKeyDer::from(key.clone_key());

        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key())?;
        client.alpn_protocols = vec![ALPN_SITE.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();

        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key())?;
        server.alpn_protocols = vec![ALPN_SITE.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { run, client: Arc::new(client), server: Arc::new(server) })
    }
}

impl Debug for SiteTls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteTls").field("run", &self.run).finish_non_exhaustive()
    }
}
