//! Images with more than eight bits per channel are scaled and reported.

use image::{DynamicImage, ImageFormat};

use super::*;
use crate::notes::Note;

/// Returns a PNG file of white pixels of a kind.
fn png(kind: &str) -> Vec<u8> {
    let (width, height) = (8, 8);
    let mut picture = match kind {
        "grey 8" => DynamicImage::new_luma8(width, height),
        "grey and alpha 8" => DynamicImage::new_luma_a8(width, height),
        "colours 8" => DynamicImage::new_rgb8(width, height),
        "colours and alpha 8" => DynamicImage::new_rgba8(width, height),
        "grey 16" => DynamicImage::new_luma16(width, height),
        "grey and alpha 16" => DynamicImage::new_luma_a16(width, height),
        "colours 16" => DynamicImage::new_rgb16(width, height),
        _ => DynamicImage::new_rgba16(width, height),
    };
    picture.invert();
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

const KINDS: [(&str, u64); 8] = [
    ("grey 8", 0),
    ("grey and alpha 8", 0),
    ("colours 8", 0),
    ("colours and alpha 8", 0),
    ("grey 16", 1),
    ("grey and alpha 16", 1),
    ("colours 16", 1),
    ("colours and alpha 16", 1),
];

fn deep(data: &Dataset) -> (u64, String) {
    let notes = data.sources().remove(0).size.notes;
    (notes.count(Note::DeepImages), notes.to_string())
}

#[test]
fn images_of_sixteen_bits_are_counted_in_archives_and_65535_is_white() {
    let others = ["folder/triangle/02.png", "folder/circle/00.jpg", "folder/square/04.png"]
        .map(|name| (fixture(name), 0));
    let kinds = KINDS.map(|(kind, count)| (png(kind), count));
    for (file, count) in kinds.iter().chain(&others) {
        let folder = Folder::new();
        folder.write("a.tar", tar(&[("7.png", file), ("7.cls", b"1")]));
        let cache = Folder::new();
        // From the file, then from the prepared data.
        for _ in 0..2 {
            let lines = format!("{SMALL}\nsources = [{{ path = \"a.tar\" }}]");
            let data = open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
            let (found, told) = deep(&data);
            assert_eq!(found, *count, "{told}");
            assert_eq!(
                told.contains("1 image has more than eight bits in a channel (the first: "),
                *count > 0,
                "{told}"
            );
            assert!(
                *count == 0
                    || told.contains("a.tar, sample 7")
                        && images(&data)[0].0.iter().all(|value| *value == 255)
            );
        }
    }
}

#[test]
fn images_of_sixteen_bits_are_counted_in_folders_prepared_before_or_meanwhile() {
    let (folder, caches) = (Folder::new(), [Folder::new(), Folder::new()]);
    for class in ["a", "b"] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            folder.write(&format!("{class}/{at}.png"), png(kind));
        }
    }
    let lines =
        format!("{SMALL}\nvalidation_share = 0.0\nsources = [{{ path = \".\", format = \"images\" }}]");
    let config = config(&lines).found_at(folder.path());
    for (cache, is_begun) in [(&caches[0], false), (&caches[1], true), (&caches[1], false)] {
        let place = (cache.path(), None);
        let data = match is_begun {
            true => Dataset::begin_within(&config, &Tokenizer::Bytes, place, &Work::default()),
            false => Dataset::open_within(&config, &Tokenizer::Bytes, place, &Work::default()),
        }
        .unwrap();
        data.coming().wait().unwrap();
        let (found, told) = deep(&data);
        assert_eq!(found, 8, "{told}");
    }
}
