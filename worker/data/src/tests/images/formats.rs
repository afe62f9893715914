//! Each format yields its pixels.

use super::*;

/// Tolerance of a resized value against double precision: both are rounded, one from single precision.
const RESIZED_OFF_MAX: u8 = 1;
/// Tolerance of a decoded JPEG file against Pillow: decoders round transforms and colours differently.
const JPEG_OFF_MAX: u8 = 2;
/// The same for colours subsampled by two in rows and columns: decoders interpolate differently.
const SUBSAMPLED_OFF_MAX: u8 = 24;

fn expected(name: &str) -> Images {
    let all: serde_json::Value = serde_json::from_slice(&fixture("expected.json")).unwrap();
    let image = |image: &serde_json::Value| {
        let hex = image["pixels"].as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        ((0..hex.len()).step_by(2).map(byte).collect(), image["class"].as_u64().unwrap() as u32)
    };
    all[name].as_array().unwrap().iter().map(image).collect()
}

/// Returns the maximum and mean error of each image's values.
fn off(found: &Images, expected: &Images, name: &str) -> Vec<(u8, f64)> {
    assert_eq!(found.len(), expected.len(), "{name}");
    let image = |(found, expected): (&Image, &Image)| {
        let ((found, class), (expected, expected_class)) = (found, expected);
        assert_eq!((class, found.len()), (expected_class, expected.len()), "{name}");
        let off: Vec<u8> = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).collect();
        let sum: u64 = off.iter().map(|off| u64::from(*off)).sum();
        (off.iter().max().copied().unwrap(), sum as f64 / off.len() as f64)
    };
    found.iter().zip(expected).map(image).collect()
}

#[test]
fn what_is_not_resized_is_pillows_of_png_exactly_and_of_jpeg_but_for_rounding() {
    for (shape, name) in [(RGB, "plain"), (GREY, "grey")] {
        let data = open(&fixtures(), &format!("{shape}\nsources = [{{ path = \"plain.tar\" }}]")).unwrap();
        for (at, (most, mean)) in off(&images(&data), &expected(name), name).into_iter().enumerate() {
            // The order of `plain`: five PNG, two JPEG, a progressive one, one with fewer colours.
            let allowed = [[0; 5].as_slice(), &[JPEG_OFF_MAX; 3], &[SUBSAMPLED_OFF_MAX]].concat()[at];
            assert!(most <= allowed && mean <= 1.0, "{name} {at}: {most}, {mean} in the mean");
        }
    }
}

#[test]
fn what_is_resized_is_as_in_double_precision() {
    let resized = IDX.replace("height = 9, width = 12", "height = 5, width = 6");
    let idx = "sources = [{ path = \"images-idx3-ubyte\", labels = \"labels-idx1-ubyte\" }]";
    for (lines, name) in [
        (format!("{RGB}\n{FOLDER}"), "folder"),
        (format!("{RGB}\n{SHARDS}"), "shards"),
        (format!("{resized}\n{idx}"), "idx_resized"),
    ] {
        let data = open(&fixtures(), &lines).unwrap();
        for (at, (most, mean)) in off(&images(&data), &expected(name), name).into_iter().enumerate() {
            // The order of `encoded`.
            let is_jpeg = name != "idx_resized" && matches!(at % 6, 0 | 1 | 3);
            let allowed = RESIZED_OFF_MAX + if is_jpeg { JPEG_OFF_MAX } else { 0 };
            assert!(most <= allowed && mean <= 0.5, "{name} {at}: {most}, {mean} in the mean");
        }
    }
}

#[test]
fn idx_is_read_as_it_is_packed_or_not_and_compressed_archives_as_others() {
    for end in ["", ".gz"] {
        let idx = format!("{{ path = \"images-idx3-ubyte{end}\", labels = \"labels-idx1-ubyte{end}\" }}");
        let data = open(&fixtures(), &format!("{IDX}\nsources = [{idx}]")).unwrap();
        assert!(images(&data) == expected("idx"), "what is not resized is as it was");
        assert_eq!(data.sources()[0].size.classes, [(0, 3), (1, 2), (2, 2)].into());
    }
    let folder = Folder::new();
    folder.write("a.tar.zst", zstd::encode_all(fixture("plain.tar").as_slice(), 1).unwrap());
    let packed = open(folder.path(), &format!("{RGB}\nsources = [{{ path = \"a.tar.zst\" }}]")).unwrap();
    let plain = open(&fixtures(), &format!("{RGB}\nsources = [{{ path = \"plain.tar\" }}]")).unwrap();
    assert!(images(&packed) == images(&plain));
}

#[test]
fn a_class_is_in_the_field_of_json_that_is_named() {
    let (image, folder) = (fixture("folder/triangle/02.png"), Folder::new());
    folder.write("a.tar", tar(&[("a.png", &image), ("a.json", b"{\"kind\": 1, \"label\": 0}")]));
    for (field, class) in [("", 0), (", field = \"kind\"", 1)] {
        let data = open(folder.path(), &format!("{SMALL}\nsources = [{{ path = \"a.tar\"{field} }}]"));
        assert_eq!(images(&data.unwrap())[0].1, class);
    }
}
