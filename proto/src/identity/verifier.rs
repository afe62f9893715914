use std::fmt::Debug;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// Certificates presented by a server, and its expected name.
pub(super) struct Shown<'a> {
    pub end_entity: &'a CertificateDer<'a>,
    pub intermediates: &'a [CertificateDer<'a>],
    pub server_name: &'a ServerName<'a>,
    pub ocsp_response: &'a [u8],
    pub now: UnixTime,
}

/// Policy of trust.
pub(super) trait Trust: Debug + Send + Sync {
    /// Checks the certificates, not the handshake.
    fn judge(&self, shown: &Shown<'_>, provider: &Arc<CryptoProvider>) -> Result<ServerCertVerified, Error>;
}

/// Delegates trust to `T` and checks that the handshake is signed with the certificate's key.
#[derive(Debug)]
pub(super) struct Verifier<T> {
    trust: T,
    provider: Arc<CryptoProvider>,
}

impl<T: Trust> Verifier<T> {
    pub fn new(trust: T, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, provider }
    }
}

impl<T: Trust> ServerCertVerifier for Verifier<T> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Shown { end_entity, intermediates, server_name, ocsp_response, now };
        self.trust.judge(&shown, &self.provider)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
