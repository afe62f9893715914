//! Proof of knowledge of a token without sending it.

use std::fmt;

use quinn::Connection;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

/// `HMAC-SHA256(secret, "longhaul enrol v1" ‖ exporter ‖ BLAKE3(request))`.
pub type Proof = [u8; 32];

const PROOF_CONTEXT: &[u8] = b"longhaul enrol v1";
const EXPORTER_LABEL: &[u8] = b"EXPORTER-longhaul-enrol";

/// Keying material known only to the two ends of one TLS session (RFC 8446 §7.5): a proof over it is useless
/// in any other session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Exporter([u8; 32]);

/// The TLS session provides no keying material.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the TLS session provides no keying material")]
pub struct ExporterError;

impl Exporter {
    /// Returns that of an established connection.
    ///
    /// # Errors
    /// The handshake is not complete.
    pub fn of(connection: &Connection) -> Result<Self, ExporterError> {
        let mut bytes = [0; 32];
        connection.export_keying_material(&mut bytes, EXPORTER_LABEL, b"").map_err(|_| ExporterError)?;
        Ok(Self(bytes))
    }
}

impl From<[u8; 32]> for Exporter {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter(…)")
    }
}

/// Secret of a token: 128 random bits.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret(pub(super) [u8; Self::BYTES]);

impl Secret {
    /// Length.
    pub(super) const BYTES: usize = 16;

    /// Generates a secret; `None`: the machine provides no random numbers.
    pub(super) fn random() -> Option<Self> {
        let mut bytes = [0; Self::BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// Proves knowledge of the secret, for one TLS session and one certificate request.
    #[must_use]
    pub fn prove(&self, exporter: &Exporter, request: &[u8]) -> Proof {
        let tag = hmac::sign(&self.key(), &statement(exporter, request));
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether a proof was made with this secret; in constant time.
    pub(super) fn made(&self, proof: &Proof, exporter: &Exporter, request: &[u8]) -> bool {
        hmac::verify(&self.key(), &statement(exporter, request), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

fn statement(exporter: &Exporter, request: &[u8]) -> Vec<u8> {
    [PROOF_CONTEXT, &exporter.0, blake3::hash(request).as_bytes()].concat()
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
