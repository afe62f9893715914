//! What is said when a worker enrols: one request, one reply.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ControlMessage;
use crate::identity::{Proof, REQUEST_BYTES_MAX, TokenId, TokenRefusal};

/// How long an enrolment may take, from the first packet to the last: the longest hello, and as much again.
pub const ENROL_DEADLINE: Duration = Duration::from_secs(20);

/// The longest site name, in bytes: it is shown in tables.
pub const SITE_NAME_BYTES_MAX: usize = 64;

/// Asks for a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolRequest {
    /// On what grounds.
    pub grounds: Grounds,
    /// A certificate request (PKCS #10 in DER), at most [`REQUEST_BYTES_MAX`].
    pub request: Vec<u8>,
    /// The worker's site, for people: 1 to [`SITE_NAME_BYTES_MAX`] bytes, no control characters.
    pub site: String,
}

/// Why somebody should get a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grounds {
    /// It knows a token's secret.
    Token {
        /// Which token.
        id: TokenId,
        /// `Secret::prove` over this TLS session and this request.
        proof: Proof,
    },
    /// It has one already, and showed it in the handshake.
    Renewal,
}

/// Answers [`EnrolRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnrolReply {
    /// Welcome.
    Admitted {
        /// The worker's certificate, in DER.
        certificate: Vec<u8>,
        /// The authority's, in DER.
        authority: Vec<u8>,
    },
    /// Nothing was issued.
    Refused(EnrolRefusal),
}

/// Why nothing was issued. Trying the same again is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum EnrolRefusal {
    /// The token does not let it in.
    #[error(transparent)]
    Token(TokenRefusal),
    /// A renewal without a certificate of this run.
    #[error("a renewal needs a certificate of this run: join with a token")]
    NoCertificate,
    /// A renewal by a worker that was taken out for good.
    #[error("this worker was revoked: ask for a new token")]
    Revoked,
    /// The certificate request is not valid.
    #[error("the coordinator does not accept the certificate request: {0}")]
    BadRequest(String),
    /// The site's name is empty, too long, or has control characters.
    #[error("a site's name has 1 to {SITE_NAME_BYTES_MAX} bytes and no control characters")]
    SiteName,
    /// The run has no numbers left.
    #[error("the run has had as many workers as it can number")]
    Full,
}

impl ControlMessage for EnrolRequest {
    /// The certificate request, the site's name, and room for the rest: a stranger gets to fill no more.
    const BYTES_MAX: usize = REQUEST_BYTES_MAX + SITE_NAME_BYTES_MAX + 128;
}

impl ControlMessage for EnrolReply {
    /// Two certificates of some 500 bytes each, with room to spare.
    const BYTES_MAX: usize = 8 << 10;
}

/// Whether people can read a site's name in a table.
pub(super) fn is_site_name(name: &str) -> bool {
    (1..=SITE_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}
