//! Stateless resets (RFC 9000, section 10.3): peers of a restarted process learn at once that their
//! connection is lost.

use std::sync::{Arc, PoisonError, RwLock};

use quinn_proto::crypto::{CryptoError, HmacKey};
use ring::digest::SHA256_OUTPUT_LEN;
use ring::hmac;

/// Key of an endpoint's reset tokens. It must be equal in each process that may succeed this one at its
/// address, and secret to others. Until it is set, it is this process's own, and peers of its successor wait
/// for the idle timeout. Clones share the key.
#[derive(Clone, Debug)]
pub struct ResetKey(Arc<RwLock<hmac::Key>>);

impl ResetKey {
    /// Creates a key of this process alone.
    ///
    /// # Errors
    /// The machine provides no random numbers.
    pub fn random() -> Result<Self, ring::error::Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new())?;
        Ok(Self(Arc::new(RwLock::new(key))))
    }

    /// Derives tokens from this secret, which has no other use, from now on.
    pub fn set(&self, secret: &[u8; 32]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = hmac::Key::new(hmac::HMAC_SHA256, secret);
    }

    fn with<T>(&self, use_key: impl FnOnce(&hmac::Key) -> T) -> T {
        use_key(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(self.with(|key| hmac::sign(key, data)).as_ref());
    }

    fn signature_len(&self) -> usize {
        SHA256_OUTPUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        self.with(|key| hmac::verify(key, data, signature)).map_err(|_| CryptoError)
    }
}
