//! Stand-in for JPEG and PNG files in builds without the feature `images`.

use longhaul_common::config::ImageConfig;

use super::resize::Picture;
use crate::built;

/// Refuses.
///
/// # Errors
/// Always.
pub(super) fn read(_: &[u8], _: &ImageConfig) -> Result<Picture, String> {
    Err(built::IMAGES.missing().to_string())
}

/// Returns false: nothing is decoded.
pub(super) fn is_turned(_: &[u8]) -> bool {
    false
}

/// The same.
pub(super) fn is_large(_: &[u8]) -> bool {
    false
}
