use std::sync::Arc;

use rustls::Error;
use rustls::client::danger::ServerCertVerified;
use rustls::crypto::CryptoProvider;

use super::verifier::{Shown, Trust};

/// Trusts any server. For probes without a token only: they send no secret, and no action depends on the
/// replies.
#[derive(Debug)]
pub(super) struct AnyAuthority;

impl Trust for AnyAuthority {
    fn judge(&self, _: &Shown<'_>, _: &Arc<CryptoProvider>) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
}
