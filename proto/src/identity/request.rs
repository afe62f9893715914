//! A worker's key, and the certificate request (PKCS #10, RFC 2986) with its public half.

use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, KeyPair, PublicKey, PublicKeyData,
};
use rustls::pki_types::{CertificateSigningRequestDer, PrivatePkcs8KeyDer};

use super::AuthorityError;

/// Maximum certificate request, in bytes; one of a [`WorkerKey`] takes about 200.
pub const REQUEST_BYTES_MAX: usize = 1024;

/// A worker's key. It never leaves its machine.
#[derive(Debug)]
pub struct WorkerKey(KeyPair);

impl WorkerKey {
    /// Generates a random key (ECDSA on P-256).
    ///
    /// # Errors
    /// The machine provides no random numbers.
    pub fn generate() -> Result<Self, AuthorityError> {
        Ok(Self(KeyPair::generate()?))
    }

    /// Returns a certificate request in DER, signed by the key. It requests no attributes: the authority
    /// determines them.
    ///
    /// # Errors
    /// The key fails to sign.
    pub fn request(&self) -> Result<Vec<u8>, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(&self.0)?.der().to_vec())
    }

    /// Returns the key in PKCS #8.
    #[must_use]
    pub fn to_pkcs8(&self) -> PrivatePkcs8KeyDer<'static> {
        self.0.serialize_der().into()
    }
}

/// Returns the public key of a request signed by it. Ignores all else in the request.
pub(super) fn public_key(request: &[u8]) -> Result<PublicKey, AuthorityError> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(AuthorityError::RequestTooLong { bytes: request.len() });
    }
    let parsed = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
        .map_err(AuthorityError::BadRequest)?;
    // rustls accepts other kinds; one is enough to maintain.
    if PublicKeyData::algorithm(&parsed.public_key) != &rcgen::PKCS_ECDSA_P256_SHA256 {
        return Err(AuthorityError::OtherKeyKind);
    }
    Ok(parsed.public_key)
}
