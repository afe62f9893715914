//! JPEG and PNG files.

use std::io::{Cursor, ErrorKind};
use std::sync::{Mutex, PoisonError};

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use longhaul_common::config::ImageConfig;

use super::super::pointers::pointer;
use super::decode::fitted;
use super::resize::Picture;
use super::{jpeg, jpeg_scan};
use crate::unwound::unwound;

/// Upper bound of an image's decoded pixels in bytes: 178 million pixels in colour, more than cameras have. A file of a few kilobytes can declare
/// many more. During decoding, coefficients and copies take up to three times as much in addition.
/// Fuzzers use a lower bound: more runs, and excess allocations show.
const DECODED_BYTES_MAX: u64 = if cfg!(fuzzing) { 1 << 24 } else { 1 << 29 };
/// Larger images, above some five million pixels, are decoded by one thread at a time: memory grows by at most 64 MiB per thread.
const LARGE_BYTES: u64 = 1 << 24;

/// Held while a large image is decoded.
static LARGE: Mutex<()> = Mutex::new(());

/// Decodes the picture in a file, at the configured size.
///
/// # Errors
/// The decoder's error.
pub(super) fn read(bytes: &[u8], shape: &ImageConfig) -> Result<Picture, String> {
    unwound(|| decoded(bytes, shape), |words| words)
}

/// Whether an image counts as large; `false` if it cannot be decoded.
pub(super) fn is_large(bytes: &[u8]) -> bool {
    let needed = || {
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
        Some(reader.into_decoder().ok()?.total_bytes())
    };
    unwound(|| Ok::<_, String>(needed()), |words| words).is_ok_and(|needed| needed > Some(LARGE_BYTES))
}

/// Whether EXIF metadata turn or mirror the picture; `false` if it cannot be decoded.
pub(super) fn is_turned(bytes: &[u8]) -> bool {
    /// In JPEG and in PNG.
    const NAMES: [&[u8]; 2] = [b"Exif\0\0", b"eXIf"];
    let orientation = || {
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
        reader.into_decoder().ok()?.orientation().ok()
    };
    let has_exif = NAMES.iter().any(|name| memchr::memmem::find(bytes, name).is_some());
    has_exif
        && unwound(|| Ok::<_, String>(orientation()), |words| words)
            .is_ok_and(|turn| turn.is_some_and(|turn| turn != Orientation::NoTransforms))
}

fn decoded(bytes: &[u8], shape: &ImageConfig) -> Result<Picture, String> {
    let mut reader = ImageReader::new(Cursor::new(bytes));
    let format = image::guess_format(bytes).ok();
    match format {
        Some(ImageFormat::Png) => {}
        Some(ImageFormat::Jpeg) if jpeg::has_end(bytes) => {
            jpeg_scan::check(bytes).map_err(str::to_owned)?;
        }
        Some(ImageFormat::Jpeg) => return Err("it is cut off: fetch it again".to_owned()),
        _ if bytes.is_empty() => {
            return Err("it is empty (0 bytes): fetch it again, or take it out".to_owned());
        }
        _ => {
            let told = pointer(bytes).map(|told| format!("it is {told}"));
            return Err(told.unwrap_or_else(|| "it is neither JPEG nor PNG: convert it".to_owned()));
        }
    }
    reader.set_format(format.unwrap_or(ImageFormat::Png));
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(told)?;
    let ((width, height), needed) = (decoder.dimensions(), decoder.total_bytes());
    if needed > DECODED_BYTES_MAX {
        let most = DECODED_BYTES_MAX >> 20;
        return Err(format!(
            "it has {width} × {height} pixels, and more than {most} MiB of them are not decoded"
        ));
    }
    let _alone = (needed > LARGE_BYTES).then(|| LARGE.lock().unwrap_or_else(PoisonError::into_inner));
    let image = DynamicImage::from_decoder(decoder).map_err(told)?;
    // Still under the lock for large images.
    Ok(fitted(picture(image, shape), shape))
}

/// Returns the cause of a decoding error, with a remedy.
fn told(error: ImageError) -> String {
    match error {
        ImageError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            "it is cut off: fetch it again".to_owned()
        }
        ImageError::Decoding(error) => {
            format!("it is damaged: fetch it again, write it anew, or take it out ({error})")
        }
        ImageError::Unsupported(error) => {
            format!("it is of an unsupported kind: convert it, for example to PNG ({error})")
        }
        other => other.to_string(),
    }
}

/// Converts an image to one value per pixel if it or the shape is grey, else to three. Ignores opacity.
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

/// Returns the luma with the rounded weights of ITU-R BT.601, as in Pillow and JPEG.
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    ((19_595 * red + 38_470 * green + 7_471 * blue + (1 << 15)) >> 16) as u8
}
