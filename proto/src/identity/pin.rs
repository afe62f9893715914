use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier as _};
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, Error, RootCertStore};

use super::Fingerprint;
use super::verifier::{Shown, Trust};

/// Trusts the authority with a known fingerprint, whose certificate the server must send.
///
/// It only chooses the trust anchor; webpki checks path, name, usage and dates as usual.
#[derive(Debug)]
pub(super) struct PinnedAuthority(pub Fingerprint);

impl Trust for PinnedAuthority {
    fn judge(&self, shown: &Shown<'_>, provider: &Arc<CryptoProvider>) -> Result<ServerCertVerified, Error> {
        let authority = shown
            .intermediates
            .iter()
            .find(|certificate| Fingerprint::of(certificate) == self.0)
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(shown.end_entity, &[], shown.server_name, shown.ocsp_response, shown.now)
    }
}
