//! Messages of an enrolment: one request, one reply.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ControlMessage;
use crate::identity::{Proof, REQUEST_BYTES_MAX, TokenId, TokenRefusal};

/// Timeout of an enrolment, from the first packet to the last: twice the hello's.
pub const ENROL_DEADLINE: Duration = Duration::from_secs(20);

/// Maximum bytes of a site name, which tables show.
pub const SITE_NAME_BYTES_MAX: usize = 64;

/// Requests a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolRequest {
    /// Grounds of the request.
    pub grounds: Grounds,
    /// A certificate request (PKCS #10 in DER), at most [`REQUEST_BYTES_MAX`].
    pub request: Vec<u8>,
    /// The worker's site, for display: 1 to [`SITE_NAME_BYTES_MAX`] bytes, no control characters.
    pub site: String,
}

/// Grounds for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grounds {
    /// Knowledge of a token's secret.
    Token {
        /// Token.
        id: TokenId,
        /// `Secret::prove` over this TLS session and this request.
        proof: Proof,
    },
    /// A valid certificate, presented in the handshake.
    Renewal,
}

/// Answers [`EnrolRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnrolReply {
    /// A certificate was issued.
    Admitted {
        /// The worker's certificate, in DER.
        certificate: Vec<u8>,
        /// The authority's certificate, in DER.
        authority: Vec<u8>,
    },
    /// Nothing was issued.
    Refused(EnrolRefusal),
}

/// Reasons to refuse a certificate. Repeating the request is useless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EnrolRefusal {
    /// The token is not accepted.
    #[error(transparent)]
    Token(TokenRefusal),
    /// A renewal without a certificate of this run.
    #[error("a renewal needs a certificate of this run: join with a token")]
    NoCertificate,
    /// A renewal by a revoked worker.
    #[error("this worker was revoked: ask for a new token")]
    Revoked,
    /// The certificate request is not valid.
    #[error("the coordinator does not accept the certificate request: {0}")]
    BadRequest(String),
    /// The site's name is empty, too long, or contains control characters.
    #[error("a site's name has 1 to {SITE_NAME_BYTES_MAX} bytes and no control characters")]
    SiteName,
    /// The run has no worker numbers left.
    #[error("the run has no worker numbers left")]
    Full,
}

impl ControlMessage for EnrolRequest {
    /// The certificate request, the site's name, and space for the rest: a stranger can send no more.
    const BYTES_MAX: usize = REQUEST_BYTES_MAX + SITE_NAME_BYTES_MAX + 128;
}

impl ControlMessage for EnrolReply {
    /// Two certificates of about 500 bytes each, with a margin.
    const BYTES_MAX: usize = 8 << 10;
}

/// Whether a site's name is printable in a table.
pub(super) fn is_site_name(name: &str) -> bool {
    (1..=SITE_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}
