//! `[data.image]`: what images are made into.
//!
//! An image of another size is scaled, in its own proportions, until it just covers what is wanted, and what sticks out is cut off on both sides alike: as
//! Pillow's `ImageOps.fit` does, and torchvision's `Resize` and `CenterCrop` together. Colours become grey by the weights of ITU-R BT.601, grey has the same value in
//! three channels, and how opaque a pixel is does not count.

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Pixels along either side, at most: more than any classifier takes.
const SIDE_MAX: u32 = 1 << 12;
/// Classes, at most: a sample has two bytes for its own.
const CLASSES_MAX: u32 = 1 << 16;

/// `[data.image]`: every image becomes so many channels, rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// 3: red, green and blue, 1: grey.
    #[serde(default = "ImageConfig::default_channels")]
    pub channels: u32,
    /// Rows of pixels.
    pub height: u32,
    /// Columns of pixels.
    pub width: u32,
    /// Classes of images: 0 and up.
    pub classes: u32,
    /// Training images are moved after that, by up to so many pixels in each direction, at random; what comes in at the border is black. Default: 0.
    #[serde(default)]
    pub shift: u32,
    /// Whether every other training image, at random, is mirrored: left and right change places.
    #[serde(default)]
    pub flip: bool,
}

impl ImageConfig {
    const fn default_channels() -> u32 {
        3
    }

    /// Values of an image.
    #[must_use]
    pub fn values(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.height) * u64::from(self.width)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refused = |key, value: u32, reason: String| Err(ConfigError::value(key, value, reason));
        if !matches!(self.channels, 1 | 3) {
            return refused(
                "data.image.channels",
                self.channels,
                "must be 3 (red, green, blue) or 1 (grey)".to_owned(),
            );
        }
        for (key, value) in [("data.image.height", self.height), ("data.image.width", self.width)] {
            if !(1..=SIDE_MAX).contains(&value) {
                return refused(key, value, format!("must lie between 1 and {SIDE_MAX} pixels"));
            }
        }
        if !(2..=CLASSES_MAX).contains(&self.classes) {
            return refused(
                "data.image.classes",
                self.classes,
                format!("must lie between 2 and {CLASSES_MAX}"),
            );
        }
        let most = self.height.min(self.width) - 1;
        if self.shift > most {
            return refused(
                "data.image.shift",
                self.shift,
                format!("must be less than the shorter side: at most {most}"),
            );
        }
        Ok(())
    }
}
