//! From a file's bytes to pixels of the size that is wanted.

use std::io::Cursor;
use std::sync::{Mutex, PoisonError};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use longhaul_common::config::ImageConfig;

use super::resize::Picture;
use super::{Pixels, RawImage, jpeg};
use crate::data::batch::CLASS_BYTES;
use crate::data::records::{RECORD_BYTES_MAX, unwound};

/// Bytes that an image's pixels may be, decoded: 178 million pixels in colour, more than cameras have. A file of a few kilobytes can say that it has many more. While it is decoded,
/// coefficients and copies take up to three times as much beside them.
/// Fuzzers have many more tries with fewer, and see what is taken beside them.
const DECODED_BYTES_MAX: u64 = if cfg!(fuzzing) { 1 << 24 } else { 1 << 29 };
/// What has more, some five million pixels, is decoded by one thread at a time: so memory grows by 64 MiB a thread at most.
const LARGE_BYTES: u64 = 1 << 24;

/// Held by whoever decodes a large image.
static LARGE: Mutex<()> = Mutex::new(());

/// Appends the sample that an image becomes: `[channels, height, width]` of bytes, and the class.
///
/// # Errors
/// What is wrong with the image, in the decoder's words; then nothing is appended.
pub fn decode(image: RawImage, shape: &ImageConfig, into: &mut Vec<u8>) -> Result<(), String> {
    let Picture { channels, values, .. } = match image.content {
        Pixels::Encoded(bytes) => unwound(|| decoded(&bytes, shape))?,
        Pixels::Grey { height, width, values } => {
            fitted(Picture { height: height as usize, width: width as usize, channels: 1, values }, shape)
        }
        Pixels::TooLarge { bytes, .. } => {
            return Err(format!("it has {bytes} bytes, and more than {RECORD_BYTES_MAX} are not read"));
        }
    };
    for channel in 0..shape.channels as usize {
        // A grey picture has the same in all of them.
        into.extend(values.iter().skip(channel.min(channels - 1)).step_by(channels));
    }
    into.extend(&image.class.to_le_bytes()[..CLASS_BYTES]);
    Ok(())
}

/// Whether others wait for whoever decodes it. Of what cannot be decoded: no.
pub fn is_large(image: &RawImage) -> bool {
    let Pixels::Encoded(bytes) = &image.content else { return false };
    let needed = || {
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
        Some(reader.into_decoder().ok()?.total_bytes())
    };
    unwound(|| needed().ok_or_else(String::new)).is_ok_and(|needed| needed > LARGE_BYTES)
}

fn decoded(bytes: &[u8], shape: &ImageConfig) -> Result<Picture, String> {
    let words = |error: image::ImageError| error.to_string();
    let mut reader = ImageReader::new(Cursor::new(bytes));
    let format = image::guess_format(bytes).ok();
    match format {
        Some(ImageFormat::Png) => {}
        Some(ImageFormat::Jpeg) if jpeg::has_end(bytes) => {}
        Some(ImageFormat::Jpeg) => return Err("it is cut off".to_owned()),
        _ => return Err("it is neither JPEG nor PNG".to_owned()),
    }
    reader.set_format(format.unwrap_or(ImageFormat::Png));
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(words)?;
    let ((width, height), needed) = (decoder.dimensions(), decoder.total_bytes());
    if needed > DECODED_BYTES_MAX {
        let most = DECODED_BYTES_MAX >> 20;
        return Err(format!(
            "it has {width} × {height} pixels, and more than {most} MiB of them are not decoded"
        ));
    }
    let _alone = (needed > LARGE_BYTES).then(|| LARGE.lock().unwrap_or_else(PoisonError::into_inner));
    let image = DynamicImage::from_decoder(decoder).map_err(words)?;
    Ok(fitted(picture(image, shape), shape))
}

fn fitted(picture: Picture, shape: &ImageConfig) -> Picture {
    picture.fit(shape.height as usize, shape.width as usize)
}

/// With one value for a pixel where the image is grey or is to be, else with three. How opaque it is does not count.
fn picture(image: DynamicImage, shape: &ImageConfig) -> Picture {
    let (height, width) = (image.height() as usize, image.width() as usize);
    if !image.color().has_color() {
        return Picture { height, width, channels: 1, values: image.into_luma8().into_raw() };
    }
    let colours = image.into_rgb8().into_raw();
    match shape.channels {
        1 => {
            let values = colours.as_chunks().0.iter().map(|pixel| luma(*pixel)).collect();
            Picture { height, width, channels: 1, values }
        }
        _ => Picture { height, width, channels: 3, values: colours },
    }
}

/// The weights of ITU-R BT.601, rounded: as Pillow and JPEG have them.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    ((19_595 * red + 38_470 * green + 7_471 * blue + (1 << 15)) >> 16) as u8
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

    #[test]
    fn what_is_no_image_is_said() {
        let refused = |bytes: &[u8]| sample(Pixels::Encoded(bytes.to_vec())).unwrap_err();
        assert_eq!(refused(b"no image"), "it is neither JPEG nor PNG");
        assert_eq!(refused(b"GIF89a"), "it is neither JPEG nor PNG");
        assert_eq!(refused(&[0xff, 0xd8, 0xff, 0xe0]), "it is cut off");
    }

    #[test]
    fn a_few_bytes_that_say_they_are_many_pixels_are_not_decoded() {
        // Signature, and a header of 60,000 × 60,000 pixels with its checksum: the rest is not looked at.
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\xea\x60\0\0\xea\x60\x08\x02\0\0\0".to_vec();
        let mut crc = flate2::Crc::new();
        crc.update(&file[12..]);
        file.extend(crc.sum().to_be_bytes());
        file.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e");
        let message = sample(Pixels::Encoded(file)).unwrap_err();
        assert!(message.contains("60000 × 60000 pixels") && message.contains("512 MiB"), "{message}");
    }
}
