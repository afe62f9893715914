//! Stub of the pair for builds without the feature `tun`.

use super::{SideConfig, TunError};
use crate::Link;

/// Cannot be created without the feature `tun`.
#[derive(Debug)]
pub struct TunPair;

impl TunPair {
    /// Refuses.
    ///
    /// # Errors
    /// [`TunError::NotBuilt`].
    pub fn start(_: &SideConfig, _: &SideConfig, _: Link, _: Link) -> Result<Self, TunError> {
        Err(TunError::NotBuilt)
    }
}
