//! Stateless resets (RFC 9000, section 10.3): whoever speaks to a process that was started anew hears at once that its connection is no more.

use std::sync::{Arc, PoisonError, RwLock};

use quinn_proto::crypto::{CryptoError, HmacKey};
use ring::digest::SHA256_OUTPUT_LEN;
use ring::hmac;

/// What an endpoint's reset tokens are made from. It has to be the same in each process that may come after this one at its address, and nobody else's;
/// until it is given a secret it is this process's own, and who speaks to the next one waits for its idle timeout. Clones are the same key.
#[derive(Clone, Debug)]
pub struct ResetKey(Arc<RwLock<hmac::Key>>);

impl ResetKey {
    /// A key of this process alone.
    ///
    /// # Errors
    /// The machine gives no random numbers.
    pub fn random() -> Result<Self, ring::error::Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new())?;
        Ok(Self(Arc::new(RwLock::new(key))))
    }

    /// From now on, tokens are made from this secret, which is used for nothing else.
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
