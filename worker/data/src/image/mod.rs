//! Images as samples: bytes of pixels, and the class behind them.
//!
//! What is prepared ends where randomness begins: an image is decoded and resized once, and moved and mirrored anew each time it is trained on.

mod augment;
mod decode;
#[cfg(feature = "images")]
mod encoded;
#[cfg(not(feature = "images"))]
#[path = "not_encoded.rs"]
mod encoded;
#[cfg(feature = "images")]
mod jpeg;
mod resize;

use longhaul_common::config::ImageConfig;

pub use self::augment::augment;
pub(super) use self::decode::{decode, is_large};
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
    /// A file with more bytes than are read of one.
    TooLarge { bytes: u64, digest: blake3::Hash },
}

impl RawImage {
    /// Bytes in memory.
    pub(super) fn read_bytes(&self) -> u64 {
        match &self.content {
            Pixels::Encoded(bytes) | Pixels::Grey { values: bytes, .. } => bytes.len() as u64,
            Pixels::TooLarge { .. } => 0,
        }
    }

    /// Whether it is a PNG file with sixteen bits in a channel: as its header says, behind the signature, a length, a name and two sides.
    pub(super) fn is_deep(&self) -> bool {
        const DEPTH_AT: usize = 24;
        matches!(&self.content, Pixels::Encoded(bytes) if bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.get(DEPTH_AT) == Some(&16))
    }

    /// BLAKE3 of its bytes.
    pub(super) fn digest(&self) -> blake3::Hash {
        match &self.content {
            Pixels::Encoded(bytes) | Pixels::Grey { values: bytes, .. } => blake3::hash(bytes),
            Pixels::TooLarge { digest, .. } => *digest,
        }
    }

    /// Everything that decides what it becomes.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let (height, width) = match self.content {
            Pixels::Encoded(_) | Pixels::TooLarge { .. } => (0, 0),
            Pixels::Grey { height, width, .. } => (height, width),
        };
        name_into(hasher, [self.class, height, width], &self.digest());
    }
}

/// The same of one that need not be there: its class, height and width (of a file none), and BLAKE3 of its bytes.
pub(super) fn name_into(hasher: &mut blake3::Hasher, numbers: [u32; 3], digest: &blake3::Hash) {
    numbers.iter().for_each(|number| _ = hasher.update(&number.to_le_bytes()));
    hasher.update(digest.as_bytes());
}

/// For each of a piece's images the one that stands there: itself, or of one that cannot be decoded the nearest before it, or else behind it, that can. None: there is no such one.
pub(super) fn standing(is_bad: &[bool]) -> Option<Vec<usize>> {
    let mut good = is_bad.iter().position(|is_bad| !is_bad)?;
    let stands = |(at, is_bad): (usize, &bool)| {
        if !is_bad {
            good = at;
        }
        good
    };
    Some(is_bad.iter().enumerate().map(stands).collect())
}

/// Of a piece's samples of so many bytes, puts copies of those that stand there in the place of those that cannot be decoded.
pub(super) fn stand_in(samples: &mut [u8], bytes: usize, is_bad: &[bool]) {
    for (at, from) in standing(is_bad).into_iter().flatten().enumerate().filter(|(at, _)| is_bad[*at]) {
        samples.copy_within(from * bytes..(from + 1) * bytes, at * bytes);
    }
}

/// What stands for an image where none of its piece can be decoded: black.
pub(super) fn black(class: u32, shape: &ImageConfig) -> Vec<u8> {
    let mut sample = vec![0; shape.values() as usize];
    sample.extend(&class.to_le_bytes()[..CLASS_BYTES]);
    sample
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
