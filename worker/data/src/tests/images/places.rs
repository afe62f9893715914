//! Files of a folder of images that are not read, and links that lead out of a class.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;

fn two_classes() -> Folder {
    let folder = Folder::new();
    for (name, image) in [("a", "circle/00.jpg"), ("b", "triangle/02.png")] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
        folder.write(&format!("{name}/1.{}", &image[image.len() - 3..]), fixture(&format!("folder/{image}")));
    }
    folder
}

const HERE: &str = "sources = [{ path = \".\", format = \"images\" }]";

/// `torchvision` follows such links, and assigns the images of one class to another.
#[test]
fn a_link_to_a_folder_above_gives_no_image_to_another_class() {
    let folder = two_classes();
    std::fs::create_dir_all(folder.path().join("a/deep/deeper")).unwrap();
    let whole = std::fs::canonicalize(folder.path()).unwrap();
    let lines = format!("{SMALL}\n{HERE}");
    for (link, to, told) in [
        ("a/up", PathBuf::from(".."), "1 link to a folder above"),
        ("a/up", whole.clone(), "1 link to a folder above"),
        ("a/up", whole.parent().unwrap().to_owned(), "1 link to a folder above"),
        ("a/deep/up", PathBuf::from("../.."), "1 link to a folder above"),
        ("a/deep/deeper/up", whole.clone(), "1 link to a folder above"),
        ("a/deep/deeper/up", PathBuf::from("../../../b/.."), "1 link to a folder above"),
        ("a/up", PathBuf::from("."), "1 link to a folder that it is in"),
        ("a/up", whole.join("a"), "1 link to a folder that it is in"),
        ("a/deep/up", PathBuf::from(".."), "1 link to a folder that it is in"),
        ("b/.shown", PathBuf::from(".."), "1 hidden"),
    ] {
        let path = folder.path().join(link);
        symlink(&to, &path).unwrap();
        let is_loss = told.contains("above");
        match open(folder.path(), &lines) {
            Ok(_) => assert!(!is_loss, "{link} to {}", to.display()),
            Err(error) => {
                let message = error.to_string();
                assert!(is_loss && message.contains(told) && message.contains(link), "{message}");
            }
        }
        let data = open(folder.path(), &format!("strict_files = false\n{lines}")).unwrap();
        let passed = data.sources().remove(0).size.passed.to_string();
        assert!(
            data.samples() == 2 && passed.starts_with(&format!("1 passed over: {told}")),
            "{link}: {passed}"
        );
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn images_of_other_names_and_formats_are_named_whatever_their_names_say() {
    let folder = two_classes();
    let [png, jpg] = ["folder/triangle/05.png", "folder/circle/00.jpg"].map(fixture);
    let lines = format!("{SMALL}\n{HERE}");
    for (name, content) in [
        ("a/z.jpe", &jpg[..]),
        ("a/z.JFIF", &jpg),
        ("a/z.tga", b"\0\0\x02"),
        ("a/z.dcm", b"content"),
        ("a/z.svg", b"<svg/>"),
        ("a/z.psd", b"8BPS"),
        ("a/z", &png),
        ("a/z.image", &jpg),
        ("a/z.txt", b"GIF89a"),
        ("a/z.dat", b"II*\0\x08\0\0\0"),
        ("a/z.1", b"BM\x36\x10\0\0\0\0\0\0"),
    ] {
        folder.write(name, content);
        let message = open(folder.path(), &lines).unwrap_err().to_string();
        assert!(message.contains("1 image that is not read") && message.contains(name), "{name}: {message}");
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    folder.write("a/notes.txt", "BMW and others");
    let data = open(folder.path(), &lines).unwrap();
    assert!(data.sources()[0].size.passed.to_string().contains("1 no image ("));
    for name in ["metadata.csv", "a/metadata.jsonl"] {
        folder.write(name, "file_name,label\n1.png,1\n");
    }
    let told = open(folder.path(), &lines).unwrap().sources()[0].size.passed.to_string();
    for words in [
        "; 2 tables beside images, of which nothing is used: the class of an image is its folder (",
        "/metadata.csv, ",
        "/a/metadata.jsonl)",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

/// Returns a JPEG file with this EXIF orientation, in either byte order.
fn turned(orientation: u8, is_big: bool) -> Vec<u8> {
    let jpg = fixture("folder/circle/00.jpg");
    let mut exif = b"Exif\0\0".to_vec();
    match is_big {
        true => exif.extend(
            [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", &[orientation][..], b"\0\0\0\0\0\0"]
                .concat(),
        ),
        false => exif.extend(
            [b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0", &[orientation][..], b"\0\0\0\0\0\0\0"]
                .concat(),
        ),
    }
    let length = u16::try_from(exif.len() + 2).unwrap().to_be_bytes();
    [&jpg[..2], b"\xff\xe1", &length, &exif, &jpg[2..]].concat()
}

/// Pillow does not turn such images either.
#[test]
fn turned_images_are_counted_and_read_as_they_are() {
    let upright = turned(1, true);
    for orientation in 0..=9 {
        let is_turned = (2..=8).contains(&orientation);
        for is_big in [false, true] {
            let folder = Folder::new();
            folder.write(
                "a.tar",
                tar(&[
                    ("7.jpg", &turned(orientation, is_big)),
                    ("7.cls", b"1"),
                    ("8.jpg", &upright),
                    ("8.cls", b"0"),
                ]),
            );
            let data = open(folder.path(), &format!("{SMALL}\nsources = [{{ path = \"a.tar\" }}]")).unwrap();
            let told = data.sources().remove(0).size.notes.to_string();
            assert_eq!(told.contains("1 image has an EXIF orientation"), is_turned, "{orientation}: {told}");
            let images = images(&data);
            assert_eq!(images[0].0, images[1].0, "{orientation}");
        }
    }
}
