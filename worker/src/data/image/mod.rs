//! Images as samples: bytes of pixels, and the class behind them.
//!
//! What is prepared ends where randomness begins: an image is decoded and resized once, and moved and mirrored anew each time it is trained on.

mod augment;
mod decode;
mod jpeg;
mod resize;

use longhaul_common::config::ImageConfig;

pub(super) use self::augment::augment;
pub(super) use self::decode::decode;
use super::batch::CLASS_BYTES;

/// An image as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawImage {
    /// Where it is, for people.
    pub(super) place: String,
    pub(super) class: u32,
    pub(super) content: Pixels,
}

/// How a file has an image's pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pixels {
    /// As a JPEG or PNG file.
    Encoded(Vec<u8>),
    /// Grey, `[height, width]`.
    Grey { height: u32, width: u32, values: Vec<u8> },
}

impl RawImage {
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            Pixels::Encoded(bytes) | Pixels::Grey { values: bytes, .. } => bytes,
        }
    }

    /// Everything that decides what it becomes.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let (height, width) = match self.content {
            Pixels::Encoded(_) => (0, 0),
            Pixels::Grey { height, width, .. } => (height, width),
        };
        for number in [self.class, height, width] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&(self.bytes().len() as u64).to_le_bytes());
        hasher.update(self.bytes());
    }
}

/// A JPEG or PNG file as a sample, as it is prepared: `[channels, height, width]` of bytes, and the class in two.
///
/// # Errors
/// What is wrong with the image, in the decoder's words.
pub fn image_sample(file: Vec<u8>, class: u32, shape: &ImageConfig) -> Result<Vec<u8>, String> {
    let mut sample = Vec::with_capacity(sample_bytes(shape));
    let content = Pixels::Encoded(file);
    decode(RawImage { place: String::new(), class, content }, shape, &mut sample).map(|()| sample)
}

/// Bytes of a sample: `[channels, height, width]`, and the class.
pub(super) fn sample_bytes(shape: &ImageConfig) -> usize {
    shape.values() as usize + CLASS_BYTES
}

/// The class of a sample.
pub(super) fn class_of(sample: &[u8]) -> u32 {
    sample.last_chunk().map_or(0, |class| u16::from_le_bytes(*class).into())
}
