use std::fmt;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// The BLAKE3 hash of an authority's certificate in DER, which a token pins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(*blake3::hash(certificate).as_bytes())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
