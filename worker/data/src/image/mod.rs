//! Images as samples: bytes of pixels, then the class.
//!
//! Preparation excludes randomness: an image is decoded and resized once, and shifted and mirrored anew for each use in training.

mod augment;
mod decode;
#[cfg(feature = "images")]
mod encoded;
#[cfg(not(feature = "images"))]
#[path = "not_encoded.rs"]
mod encoded;
#[cfg(feature = "images")]
mod jpeg;
#[cfg(feature = "images")]
mod jpeg_scan;
mod resize;

use longhaul_common::config::ImageConfig;

pub use self::augment::augment;
pub(super) use self::decode::{decode, is_large};
use super::batch::CLASS_BYTES;
use super::notes::{Note, Notes};

/// An image as stored in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawImage {
    /// Its place, for messages.
    pub(super) place: String,
    pub(super) class: u32,
    pub(super) content: Pixels,
}

/// The form of an image's pixels in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pixels {
    /// A JPEG or PNG file.
    Encoded(Vec<u8>),
    /// Grey, `[height, width]`.
    Grey { height: u32, width: u32, values: Vec<u8> },
    /// A file above the size limit.
    TooLarge { bytes: u64, digest: blake3::Hash },
}

impl RawImage {
    /// Returns the bytes in memory.
    pub(super) fn read_bytes(&self) -> u64 {
        match &self.content {
            Pixels::Encoded(bytes) | Pixels::Grey { values: bytes, .. } => bytes.len() as u64,
            Pixels::TooLarge { .. } => 0,
        }
    }

    /// Whether it is a PNG file with 16 bits per channel, by its header: after the signature, a length, a name, width and height.
    fn is_deep(&self) -> bool {
        const DEPTH_AT: usize = 24;
        matches!(&self.content, Pixels::Encoded(bytes) if bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.get(DEPTH_AT) == Some(&16))
    }

    /// Whether its EXIF orientation, which is not applied, is another than upright.
    fn is_turned(&self) -> bool {
        matches!(&self.content, Pixels::Encoded(bytes) if encoded::is_turned(bytes))
    }

    /// Returns the notes on it.
    pub(super) fn notes(&self) -> Notes {
        let mut notes = Notes::default();
        let first = || self.place.clone();
        notes.note(Note::DeepImages, self.is_deep().into(), first);
        notes.note(Note::TurnedImages, self.is_turned().into(), first);
        notes
    }

    /// Returns the BLAKE3 of its bytes.
    pub(super) fn digest(&self) -> blake3::Hash {
        match &self.content {
            Pixels::Encoded(bytes) | Pixels::Grey { values: bytes, .. } => blake3::hash(bytes),
            Pixels::TooLarge { digest, .. } => *digest,
        }
    }

    /// Hashes all inputs that determine its sample.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let (height, width) = match self.content {
            Pixels::Encoded(_) | Pixels::TooLarge { .. } => (0, 0),
            Pixels::Grey { height, width, .. } => (height, width),
        };
        name_into(hasher, [self.class, height, width], &self.digest());
    }
}

/// The same from its class, height and width (0 for a file), and the BLAKE3 of its bytes.
pub(super) fn name_into(hasher: &mut blake3::Hasher, numbers: [u32; 3], digest: &blake3::Hash) {
    numbers.iter().for_each(|number| _ = hasher.update(&number.to_le_bytes()));
    hasher.update(digest.as_bytes());
}

/// Returns, for each image of a piece, the image stored in its place: itself, or for an undecodable one the nearest good one before it, or else after
/// it. `None`: no image is good.
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

/// Replaces the undecodable samples of a piece, of `bytes` each, with copies of their stand-ins.
pub(super) fn stand_in(samples: &mut [u8], bytes: usize, is_bad: &[bool]) {
    for (at, from) in standing(is_bad).into_iter().flatten().enumerate().filter(|(at, _)| is_bad[*at]) {
        samples.copy_within(from * bytes..(from + 1) * bytes, at * bytes);
    }
}

/// Returns the stand-in if no image of the piece can be decoded: black.
pub(super) fn black(class: u32, shape: &ImageConfig) -> Vec<u8> {
    let mut sample = vec![0; shape.values() as usize];
    sample.extend(&class.to_le_bytes()[..CLASS_BYTES]);
    sample
}

/// Converts a JPEG or PNG file to a prepared sample: `[channels, height, width]` bytes, then the class in two.
///
/// # Errors
/// The decoder's error.
pub fn image_sample(file: Vec<u8>, class: u32, shape: &ImageConfig) -> Result<Vec<u8>, String> {
    let mut sample = Vec::with_capacity(sample_bytes(shape));
    let content = Pixels::Encoded(file);
    decode(RawImage { place: String::new(), class, content }, shape, &mut sample).map(|()| sample)
}

/// Returns the bytes of a sample: `[channels, height, width]`, and the class.
pub(super) fn sample_bytes(shape: &ImageConfig) -> usize {
    shape.values() as usize + CLASS_BYTES
}

/// Returns the class of a sample.
pub(super) fn class_of(sample: &[u8]) -> u32 {
    sample.last_chunk().map_or(0, |class| u16::from_le_bytes(*class).into())
}
