//! Join tokens, which a user pastes on a joining machine.

use std::fmt;
use std::str::FromStr;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::{AuthorityError, Fingerprint, Secret, base32};

/// The public name of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenId(pub [u8; 8]);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenId({self})")
    }
}

/// A secret to enrol with, and the authority to trust.
///
/// `Display` includes the secret; `Debug` omits it.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its public name.
    pub id: TokenId,
    /// Secret to prove.
    pub secret: Secret,
    /// The authority whose coordinator to trust.
    pub authority: Fingerprint,
}

/// A text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The prefix of tokens is missing.
    #[error(
        "this is not a join token: those begin with `{TOKEN_PREFIX}` (`coordinator token create` prints one)"
    )]
    NotAToken,
    /// The prefix is of another release.
    #[error(
        "this join token is of a kind that this release does not know: use the same release on all machines"
    )]
    OtherVersion,
    /// The end is missing.
    #[error("the join token is cut off: {found} of {expected} characters are there; copy the whole line", expected = TOKEN_PREFIX.len() + CHARACTERS)]
    Truncated {
        /// Characters present.
        found: usize,
    },
    /// A character is wrong.
    #[error("the join token is damaged: copy it again instead of typing it")]
    Damaged,
}

/// Kind and version of a token.
pub const TOKEN_PREFIX: &str = "lh1.";
/// Common start of the prefixes of all versions.
const FAMILY: &str = "lh";
const CHECKSUM_BYTES: usize = 4;
const CHECKED_BYTES: usize = 8 + Secret::BYTES + 32;
const BYTES: usize = CHECKED_BYTES + CHECKSUM_BYTES;
const CHARACTERS: usize = BYTES / 5 * 8;

impl Token {
    /// Creates a token for the authority with this fingerprint. It is valid once the coordinator has stored
    /// it.
    ///
    /// # Errors
    /// The machine provides no random numbers.
    pub fn create(authority: Fingerprint) -> Result<Self, AuthorityError> {
        let mut id = [0; 8];
        SystemRandom::new().fill(&mut id).map_err(|_| AuthorityError::NoRandomness)?;
        let secret = Secret::random().ok_or(AuthorityError::NoRandomness)?;
        Ok(Self { id: TokenId(id), secret, authority })
    }
}

/// Distinguishes a mistyped token from a refused one before dialling; it proves nothing.
fn checksum(checked: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::derive_key("longhaul join token v1 checksum", checked);
    [hash[0], hash[1], hash[2], hash[3]]
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; BYTES];
        let (checked, sum) = bytes.split_at_mut(CHECKED_BYTES);
        let (id, rest) = checked.split_at_mut(8);
        let (secret, authority) = rest.split_at_mut(Secret::BYTES);
        id.copy_from_slice(&self.id.0);
        secret.copy_from_slice(&self.secret.0);
        authority.copy_from_slice(&self.authority.0);
        sum.copy_from_slice(&checksum(checked));
        write!(f, "{TOKEN_PREFIX}{}", base32::encode(&bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let Some(body) = text.strip_prefix(TOKEN_PREFIX) else {
            return Err(refuse_prefix(text));
        };
        if body.len() < CHARACTERS {
            return Err(TokenError::Truncated { found: text.len() });
        }
        let bytes: [u8; BYTES] = base32::decode(body).ok_or(TokenError::Damaged)?;
        let (checked, sum) = bytes.split_at(CHECKED_BYTES);
        if checksum(checked) != sum {
            return Err(TokenError::Damaged);
        }
        let (mut id, mut secret, mut authority) = ([0; 8], [0; Secret::BYTES], [0; 32]);
        id.copy_from_slice(&checked[..8]);
        secret.copy_from_slice(&checked[8..8 + Secret::BYTES]);
        authority.copy_from_slice(&checked[8 + Secret::BYTES..]);
        Ok(Self { id: TokenId(id), secret: Secret(secret), authority: Fingerprint(authority) })
    }
}

fn refuse_prefix(text: &str) -> TokenError {
    let version = text.split_once('.').and_then(|(kind, _)| kind.strip_prefix(FAMILY));
    match version {
        Some(version) if !version.is_empty() && version.bytes().all(|digit| digit.is_ascii_digit()) => {
            TokenError::OtherVersion
        }
        _ if !text.is_empty() && TOKEN_PREFIX.starts_with(text) => {
            TokenError::Truncated { found: text.len() }
        }
        _ => TokenError::NotAToken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token {
            id: TokenId([1, 2, 3, 4, 5, 6, 7, 8]),
            secret: Secret(*b"sixteen bytes!!!"),
            authority: Fingerprint([0xa5; 32]),
        }
    }

    /// The checksum is the start of BLAKE3's `derive_key`.
    const GOLDEN: &str = "lh1.041061050r3ggwv9f1t6asbe41h7jx35ecgj28d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mnr91zgp";

    #[test]
    fn the_text_form_is_the_golden_one() {
        assert_eq!(token().to_string(), GOLDEN);
        let read: Token = GOLDEN.parse().unwrap();
        assert_eq!(
            (read.id, read.secret.0, read.authority),
            (token().id, token().secret.0, token().authority)
        );
    }

    #[test]
    fn a_pasted_token_may_have_space_around_it_and_capitals() {
        let body = GOLDEN.strip_prefix(TOKEN_PREFIX).unwrap();
        let pasted = format!("  {TOKEN_PREFIX}{}\n", body.to_uppercase());
        assert_eq!(pasted.parse::<Token>().unwrap().to_string(), GOLDEN);
    }

    #[test]
    fn every_truncation_is_told_from_damage() {
        for length in 1..GOLDEN.len() {
            let cut = GOLDEN[..length].parse::<Token>().unwrap_err();
            assert_eq!(cut, TokenError::Truncated { found: length });
        }
        assert_eq!("".parse::<Token>().unwrap_err(), TokenError::NotAToken);
    }

    #[test]
    fn every_wrong_character_is_noticed() {
        for at in TOKEN_PREFIX.len()..GOLDEN.len() {
            let mut damaged = GOLDEN.as_bytes().to_vec();
            damaged[at] = if damaged[at] == b'0' { b'1' } else { b'0' };
            let damaged = String::from_utf8(damaged).unwrap();
            assert_eq!(damaged.parse::<Token>().unwrap_err(), TokenError::Damaged, "character {at}");
        }
        assert_eq!(format!("{GOLDEN}0").parse::<Token>().unwrap_err(), TokenError::Damaged);
        assert_eq!(GOLDEN.replace('5', "ü").parse::<Token>().unwrap_err(), TokenError::Damaged);
    }

    #[test]
    fn other_texts_are_told_from_tokens() {
        assert_eq!("ghp_0123456789".parse::<Token>().unwrap_err(), TokenError::NotAToken);
        assert_eq!("lhx.abc".parse::<Token>().unwrap_err(), TokenError::NotAToken);
        assert_eq!(GOLDEN.replace("lh1", "lh2").parse::<Token>().unwrap_err(), TokenError::OtherVersion);
    }

    #[test]
    fn debug_output_does_not_hold_the_secret() {
        let shown = format!("{:?}", token());
        assert!(shown.contains("Secret(…)"), "{shown}");
        assert!(!shown.contains("115, 105, 120"), "{shown}");
    }
}
