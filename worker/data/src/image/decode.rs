//! Decoding of a file's bytes to pixels of the configured size.

use longhaul_common::config::ImageConfig;

use super::resize::Picture;
use super::{Pixels, RawImage, encoded};
use crate::batch::CLASS_BYTES;
use crate::bounds::RECORD_BYTES_MAX;

/// Appends the sample of an image: bytes `[channels, height, width]`, and the class.
///
/// # Errors
/// The decoder's error; nothing is appended then.
pub fn decode(image: RawImage, shape: &ImageConfig, into: &mut Vec<u8>) -> Result<(), String> {
    let Picture { channels, values, .. } = match image.content {
        Pixels::Encoded(bytes) => encoded::read(&bytes, shape)?,
        Pixels::Grey { height, width, values } => {
            fitted(Picture { height: height as usize, width: width as usize, channels: 1, values }, shape)
        }
        Pixels::TooLarge { bytes, .. } => {
            return Err(format!("it has {bytes} bytes, and more than {RECORD_BYTES_MAX} are not read"));
        }
    };
    for channel in 0..shape.channels as usize {
        // A grey picture has equal channels.
        into.extend(values.iter().skip(channel.min(channels - 1)).step_by(channels));
    }
    into.extend(&image.class.to_le_bytes()[..CLASS_BYTES]);
    Ok(())
}

/// Whether an image is decoded under the lock for large ones; `false` if it cannot be decoded.
pub fn is_large(image: &RawImage) -> bool {
    matches!(&image.content, Pixels::Encoded(bytes) if encoded::is_large(bytes))
}

pub(super) fn fitted(picture: Picture, shape: &ImageConfig) -> Picture {
    picture.fit(shape.height as usize, shape.width as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageConfig =
        ImageConfig { channels: 3, height: 1, width: 2, classes: 3, shift: 0, flip: false };

    fn sample(content: Pixels) -> Result<Vec<u8>, String> {
        let mut sample = Vec::new();
        decode(RawImage { place: "here".to_owned(), class: 2, content }, &SHAPE, &mut sample)?;
        Ok(sample)
    }

    #[test]
    fn grey_images_have_the_same_in_each_channel_and_the_class_comes_last() {
        let grey = Pixels::Grey { height: 1, width: 2, values: vec![7, 9] };
        assert_eq!(sample(grey), Ok(vec![7, 9, 7, 9, 7, 9, 2, 0]));
    }

    #[cfg(feature = "images")]
    #[test]
    fn what_is_no_image_is_said() {
        let refused = |bytes: &[u8]| sample(Pixels::Encoded(bytes.to_vec())).unwrap_err();
        assert_eq!(refused(b""), "it is empty (0 bytes): fetch it again, or take it out");
        assert_eq!(refused(b"no image"), "it is neither JPEG nor PNG: convert it");
        assert_eq!(refused(b"GIF89a"), "it is neither JPEG nor PNG: convert it");
        assert!(
            refused(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n").contains("git lfs pull")
        );
        assert_eq!(refused(&[0xff, 0xd8, 0xff, 0xe0]), "it is cut off: fetch it again");
    }

    #[cfg(feature = "images")]
    #[test]
    fn a_damaged_image_is_told_with_what_helps() {
        let png = std::fs::read(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/fixtures/images/folder/triangle/02.png"),
        )
        .unwrap();
        sample(Pixels::Encoded(png.clone())).unwrap();
        let with = |at: usize| {
            let mut other = png.clone();
            other[at] ^= 0x41;
            sample(Pixels::Encoded(other)).unwrap_err()
        };
        // Header: sides, bits, kinds, checksum; pixels: name, content, checksum.
        let data = png.windows(4).position(|name| name == b"IDAT").unwrap();
        for at in [19, 23, 24, 25, 26, 27, 28, 29, 32, data + 3, data + 4, data + 30, png.len() - 17] {
            let message = with(at);
            let is_told = ["fetch it again", "convert it", "are not decoded"]
                .iter()
                .any(|words| message.contains(words));
            assert!(is_told && message.starts_with("it "), "{at}: {message}");
        }
        for end in [data + 6, png.len() - 14] {
            let message = sample(Pixels::Encoded(png[..end].to_vec())).unwrap_err();
            assert!(message.contains("fetch it again"), "{end}: {message}");
        }
    }

    #[cfg(all(feature = "gzip", feature = "images"))]
    #[test]
    fn a_few_bytes_that_say_they_are_many_pixels_are_not_decoded() {
        // Signature, and a header of 60,000 × 60,000 pixels with its checksum: the rest is not read.
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0".to_vec();
        let mut crc = flate2::Crc::new();
        crc.update(&file[12..]);
        file.extend(crc.sum().to_be_bytes());
        file.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        let message = sample(Pixels::Encoded(file)).unwrap_err();
        assert!(message.contains("60000 × 60000 pixels") && message.contains("512 MiB"), "{message}");
    }
}
