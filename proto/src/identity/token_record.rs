//! The coordinator's record of a token.

use serde::{Deserialize, Serialize};

use super::{Exporter, Proof, Secret, Token, TokenId};

/// An issued token, with its limits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Its public name.
    pub id: TokenId,
    /// Secret to prove.
    pub secret: Secret,
    /// Second of expiry (Unix time).
    pub expires_at_unix_s: u64,
    /// Remaining enrolments; `None`: unlimited.
    pub uses_left: Option<u32>,
    /// Revoked by the user.
    pub revoked: bool,
}

/// Remedy for a refused token.
const NEW_TOKEN: &str = "`coordinator token create`, where the coordinator runs, makes a new one";

/// Reasons to refuse a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TokenRefusal {
    /// No token has this id.
    #[error(
        "the coordinator does not know this token, or no longer, as expired ones are forgotten: {NEW_TOKEN}"
    )]
    Unknown,
    /// The proof was not made with the token's secret.
    #[error("the token's secret is wrong: {NEW_TOKEN}")]
    WrongSecret,
    /// The user revoked it.
    #[error("the token was revoked: {NEW_TOKEN}")]
    Revoked,
    /// The token has expired.
    #[error("the token has expired: {NEW_TOKEN}")]
    Expired,
    /// All permitted enrolments are used.
    #[error("the token was used as often as it allows: {NEW_TOKEN}")]
    UsedUp,
}

impl TokenRecord {
    /// Creates the record of a new token.
    #[must_use]
    pub fn new(token: &Token, expires_at_unix_s: u64, uses_left: Option<u32>) -> Self {
        Self { id: token.id, secret: token.secret.clone(), expires_at_unix_s, uses_left, revoked: false }
    }

    /// Checks a proof made in the TLS session of `exporter` for a certificate request.
    ///
    /// # Errors
    /// [`TokenRefusal`]. Only a peer that knows the secret learns that a token is revoked, expired or used
    /// up.
    pub fn verify(
        &self,
        proof: &Proof,
        exporter: &Exporter,
        request: &[u8],
        now_unix_s: u64,
    ) -> Result<(), TokenRefusal> {
        if !self.secret.made(proof, exporter, request) {
            Err(TokenRefusal::WrongSecret)
        } else if self.revoked {
            Err(TokenRefusal::Revoked)
        } else if now_unix_s >= self.expires_at_unix_s {
            Err(TokenRefusal::Expired)
        } else if self.uses_left == Some(0) {
            Err(TokenRefusal::UsedUp)
        } else {
            Ok(())
        }
    }

    /// Counts one use.
    pub fn count_use(&mut self) {
        self.uses_left = self.uses_left.map(|left| left.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Authority, Fingerprint};
    use super::*;
    use longhaul_common::id::RunId;

    const REQUEST: &[u8] = b"a certificate request";

    fn case() -> (Token, TokenRecord, Exporter) {
        let token = Token::create(Fingerprint([0; 32])).unwrap();
        let record = TokenRecord::new(&token, 1000, Some(2));
        (token, record, Exporter::from([9; 32]))
    }

    #[test]
    fn the_right_proof_lets_in_until_the_second_of_expiry() {
        let (token, record, exporter) = case();
        let proof = token.secret.prove(&exporter, REQUEST);
        assert_eq!(record.verify(&proof, &exporter, REQUEST, 999), Ok(()));
        assert_eq!(record.verify(&proof, &exporter, REQUEST, 1000), Err(TokenRefusal::Expired));
    }

    #[test]
    fn a_proof_holds_for_one_session_and_one_request_only() {
        let (token, record, exporter) = case();
        let proof = token.secret.prove(&exporter, REQUEST);
        let other_session = record.verify(&proof, &Exporter::from([8; 32]), REQUEST, 0);
        let other_request = record.verify(&proof, &exporter, b"another", 0);
        assert_eq!([other_session, other_request], [Err(TokenRefusal::WrongSecret); 2]);
    }

    #[test]
    fn a_token_lets_in_as_often_as_it_says() {
        let (token, mut record, exporter) = case();
        let proof = token.secret.prove(&exporter, REQUEST);
        for _ in 0..2 {
            assert_eq!(record.verify(&proof, &exporter, REQUEST, 0), Ok(()));
            record.count_use();
        }
        assert_eq!(record.verify(&proof, &exporter, REQUEST, 0), Err(TokenRefusal::UsedUp));
    }

    #[test]
    fn only_who_knows_the_secret_learns_what_became_of_a_token() {
        let (token, mut record, exporter) = case();
        record.revoked = true;
        let proof = token.secret.prove(&exporter, REQUEST);
        assert_eq!(record.verify(&proof, &exporter, REQUEST, 0), Err(TokenRefusal::Revoked));
        assert_eq!(record.verify(&[0; 32], &exporter, REQUEST, 0), Err(TokenRefusal::WrongSecret));
    }

    #[test]
    fn the_proof_is_the_golden_one() {
        // hmac.new(b"sixteen bytes!!!", b"longhaul enrol v1" + bytes([9] * 32) + blake3(REQUEST), sha256) in Python.
        let proof = Secret(*b"sixteen bytes!!!").prove(&Exporter::from([9; 32]), REQUEST);
        let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "39a8f03b2af99a03f06d7af9a7e23a6fbb64ff7e134b57c804510b4088ba0a2c");
    }

    #[test]
    fn tokens_of_one_authority_share_nothing_but_its_fingerprint() {
        let authority = Authority::create(RunId([1; 16]), 0).unwrap().fingerprint();
        let (one, other) = (Token::create(authority).unwrap(), Token::create(authority).unwrap());
        assert!(one.id != other.id && one.secret.0 != other.secret.0 && one.authority == other.authority);
    }
}
