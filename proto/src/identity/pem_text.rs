//! Certificates and keys as PEM (RFC 7468).

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// Content of a PEM text.
pub(super) struct PemText {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) key: PrivatePkcs8KeyDer<'static>,
}

/// Writes certificates, then the key.
pub(super) fn write(certificates: &[&CertificateDer<'_>], key: &[u8]) -> String {
    let mut sections: Vec<Pem> =
        certificates.iter().map(|certificate| Pem::new(CERTIFICATE, certificate.to_vec())).collect();
    sections.push(Pem::new(PRIVATE_KEY, key));
    pem::encode_many_config(&sections, EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// Parses the output of [`write`]; `None`: not PEM, or without exactly one key.
pub(super) fn read(text: &str) -> Option<PemText> {
    let mut certificates = Vec::new();
    let mut key = None;
    for section in pem::parse_many(text).ok()? {
        match section.tag() {
            CERTIFICATE => certificates.push(section.into_contents().into()),
            PRIVATE_KEY if key.is_none() => key = Some(section.into_contents().into()),
            _ => return None,
        }
    }
    Some(PemText { certificates, key: key? })
}
