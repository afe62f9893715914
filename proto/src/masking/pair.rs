//! Secrets shared by two sites.

use std::fmt;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a secret: a key of ChaCha20.
pub const MASK_SECRET_BYTES: usize = 32;

/// A secret of two workers for one generation, from which both expand the same masks.
#[derive(Clone, PartialEq, Eq)]
pub struct PairSecret([u8; MASK_SECRET_BYTES]);

/// Place of a masked contribution; a site has at most one per place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey {
    /// Generation of the frame.
    pub generation: Generation,
    /// Round.
    pub round: Round,
    /// Fragment.
    pub fragment: FragmentId,
}

/// The operating system provides no randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no randomness")]
pub struct NoRandomness;

impl PairSecret {
    /// Generates a secret.
    ///
    /// # Errors
    /// [`NoRandomness`]
    pub fn draw() -> Result<Self, NoRandomness> {
        let mut bytes = [0; MASK_SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Self(bytes))
    }

    /// Returns the secret that the partner generated.
    #[must_use]
    pub fn from_bytes(bytes: [u8; MASK_SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes for the partner.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; MASK_SECRET_BYTES] {
        &self.0
    }

    /// Adds the pair's mask to the words of the lower-numbered worker, and subtracts it from those of the
    /// other.
    ///
    /// The mask is the key stream of ChaCha20 (nonce and counter zero, words little-endian). The key is
    /// BLAKE3, keyed with the secret, of the place: generation and round as u64, fragment as u32,
    /// little-endian.
    pub(super) fn mask(&self, place: FrameKey, me: WorkerId, partner: WorkerId, words: &mut [u32]) {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&place.generation.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.round.0.to_le_bytes());
        bytes[16..].copy_from_slice(&place.fragment.0.to_le_bytes());
        let mut stream = ChaCha20Rng::from_seed(*blake3::keyed_hash(&self.0, &bytes).as_bytes());
        let adds = me < partner;
        for word in words {
            let mask = stream.next_u32();
            *word = if adds { word.wrapping_add(mask) } else { word.wrapping_sub(mask) };
        }
    }
}

/// Keeps secrets out of logs.
impl fmt::Debug for PairSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairSecret(…)")
    }
}
