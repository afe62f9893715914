use std::sync::Arc;

use rustls::Error;
use rustls::client::danger::ServerCertVerified;
use rustls::crypto::CryptoProvider;

use super::verifier::{Shown, Trust};

/// Believes any server to be who it says it is. For probes without a token only: they say nothing secret, and nobody acts
/// on what they hear.
#[derive(Debug)]
pub(super) struct AnyAuthority;

impl Trust for AnyAuthority {
    fn judge(&self, _: &Shown<'_>, _: &Arc<CryptoProvider>) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
}
