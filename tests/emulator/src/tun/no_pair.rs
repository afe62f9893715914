//! In place of the pair, where the emulator is built without the feature `tun`.

use super::{SideConfig, TunError};
use crate::Link;

/// What cannot be had without the feature `tun`.
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
