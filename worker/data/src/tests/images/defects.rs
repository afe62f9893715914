//! Defective images and image files.

use rand::{Rng, SeedableRng};

use super::*;
use crate::image::{Pixels, RawImage, decode};

/// Returns a folder with a class `a` of one image and a class `b` of two.
fn two_classes() -> Folder {
    let folder = Folder::new();
    for class in ["a", "b"] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
    }
    folder.write("a/1.png", fixture("folder/triangle/02.png"));
    folder.write("b/2.JPG", fixture("folder/circle/00.jpg"));
    folder.write("b/3.png", fixture("folder/triangle/05.png"));
    folder
}

const HERE: &str = "sources = [{ path = \".\", format = \"images\" }]";

#[test]
fn images_that_cannot_be_decoded_are_named_and_others_stand_for_them_up_to_the_limit() {
    let folder = two_classes();
    let whole = fixture("folder/circle/00.jpg");
    folder.write("b/2.JPG", &whole[..whole.len() - 40]);
    folder.write("b/4.png", "no image");
    folder.write("b/notes.txt", "nothing to it");
    let (cache, lines) = (Folder::new(), format!("{SMALL}\n{HERE}"));
    let message = open_at(folder.path(), &cache, &lines, &Work::default()).unwrap_err().to_string();
    assert!(message.contains("b/2.JPG: it is cut off"), "{message}");
    assert!(
        message.contains("2 records") && message.contains("b/4.png: it is neither JPEG nor PNG"),
        "{message}"
    );
    let lines = format!("bad_records_max = 2\n{lines}");
    // From the existing pieces, then from the list.
    for _ in 0..2 {
        let data = open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
        let size = data.sources().remove(0).size;
        assert_eq!((size.records, size.bad.count, data.samples()), (2, 2, 4));
        assert_eq!(size.classes, [(0, 2), (1, 2)].into());
        assert_eq!(images(&data).iter().map(|(_, class)| *class).collect::<Vec<_>>(), [0, 0, 1, 1]);
        // A rebuilt shard has the same ones.
        std::fs::remove_file(
            std::fs::read_dir(cache.path().join("data/shards")).unwrap().next().unwrap().unwrap().path(),
        )
        .unwrap();
        assert_eq!(images(&data).len(), 4);
    }
}

#[test]
fn a_folder_without_images_or_with_other_classes_is_refused_by_name() {
    let folder = two_classes();
    let open = |classes: u32| {
        let shape = format!("image = {{ height = 4, width = 4, classes = {classes} }}");
        open(folder.path(), &format!("{shape}\n{HERE}")).map_err(|error| error.to_string())
    };
    assert_eq!(open(2).unwrap().samples(), 3);
    for classes in [3, 20] {
        let message = open(classes).unwrap_err();
        assert!(message.contains(&format!("2 folders, and data.image.classes = {classes}")), "{message}");
    }
    // A tool's own folder is no class.
    std::fs::create_dir(folder.path().join(".thumbnails")).unwrap();
    assert_eq!(open(2).unwrap().samples(), 3);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let message = open(3).unwrap_err();
    assert!(message.contains("/empty: a class without an image"), "{message}");
}

#[test]
fn a_folder_is_taken_for_images_where_these_are_asked_for_and_nothing_else_is() {
    let folder = two_classes();
    let refused = |lines: &str| open(folder.path(), lines).unwrap_err().to_string();
    let message = refused(&format!("{SMALL}\nsources = [{{ path = \"a/1.png\", format = \"images\" }}]"));
    assert!(message.contains("a/1.png: it is no folder"), "{message}");
    let message = refused("sequence_length = 8\nsources = [{ path = \"a\" }]");
    assert!(message.contains("/a: it is a folder: take a glob"), "{message}");
}

#[test]
fn folders_whose_classes_are_called_otherwise_are_refused_as_their_numbers_would_mean_others() {
    let folder = Folder::new();
    for (source, classes) in [("one", ["cat", "dog"]), ("two", ["cat", "eel"])] {
        for class in classes {
            std::fs::create_dir_all(folder.path().join(source).join(class)).unwrap();
            folder.write(&format!("{source}/{class}/1.png"), fixture("folder/triangle/02.png"));
        }
    }
    let source = |name: &str| format!("{{ path = \"{name}\", format = \"images\" }}");
    let lines = format!("{SMALL}\nsources = [{}]\nvalidation = [{}]", source("one"), source("two"));
    let message = open(folder.path(), &lines).unwrap_err().to_string();
    assert!(
        message.contains("/two: it has a class eel where ") && message.contains("/one has dog"),
        "{message}"
    );
}

#[test]
fn an_image_that_changed_is_noticed() {
    let (folder, cache) = (two_classes(), Folder::new());
    let lines = format!("{SMALL}\n{HERE}");
    let open = || open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
    let before = open();
    folder.write("b/3.png", fixture("folder/triangle/08.png"));
    assert_ne!(open().data_hash(), before.data_hash());
    folder.write("b/3.png", fixture("folder/triangle/05.png"));
    assert_eq!(open().data_hash(), before.data_hash());
    std::fs::rename(folder.path().join("b/3.png"), folder.path().join("a/3.png")).unwrap();
    assert_ne!(open().data_hash(), before.data_hash());
}

#[test]
fn an_image_that_changed_in_place_with_its_size_and_time_put_back_is_noticed() {
    let (folder, cache) = (two_classes(), Folder::new());
    let lines = format!("{SMALL}\n{HERE}");
    let open = || open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
    let mut versions = ["05", "08"].map(|name| fixture(&format!("folder/triangle/{name}.png")));
    let bytes = versions.iter().map(Vec::len).max().unwrap();
    let found = versions.each_mut().map(|version| {
        // Bytes after the end of a PNG file are not part of it.
        version.resize(bytes, 0);
        folder.write_in_place("b/3.png", version);
        images(&open())
    });
    assert_ne!(found[0], found[1]);
}

#[test]
fn idx_files_that_are_cut_or_do_not_fit_are_refused_by_name_and_place() {
    let (folder, cache) = (Folder::new(), Folder::new());
    let (pixels, labels) = (fixture("images-idx3-ubyte"), fixture("labels-idx1-ubyte"));
    let mut fewer = labels[..labels.len() - 1].to_vec();
    fewer[7] -= 1;
    let (mut other, mut flat) = (labels.clone(), pixels.clone());
    other[8] = 3;
    flat[8..16].fill(0);
    for (images, labels, words) in [
        (&pixels, &pixels, "labels cannot be read as idx (its head): it does not begin as IDX of labels"),
        (&labels, &labels, "images cannot be read as idx (its head): it does not begin as IDX of images"),
        (&pixels, &fewer, "labels cannot be read as idx (its head): it has 6 labels, and "),
        (
            &pixels[..pixels.len() - 1].to_vec(),
            &labels,
            "images cannot be read as idx (image 6 of 7, counted from 0): it is cut off",
        ),
        (&pixels[..9].to_vec(), &labels, "images cannot be read as idx (its head): it is cut off"),
        (
            &pixels,
            &labels[..12].to_vec(),
            "labels cannot be read as idx (image 4 of 7, counted from 0): it is cut off",
        ),
        (
            &[pixels.as_slice(), &[0]].concat(),
            &labels,
            "images cannot be read as idx (its end): it continues",
        ),
        (&pixels, &other, "images, image 0 is of class 3, and data.image.classes = 3"),
        (&flat, &labels, "images of 0 × 0 pixels are not read"),
    ] {
        folder.write("images", images);
        folder.write("labels", labels);
        let lines =
            format!("{IDX}\nsources = [{{ path = \"images\", format = \"idx\", labels = \"labels\" }}]");
        let message = open(folder.path(), &lines).unwrap_err().to_string();
        assert!(message.contains(words), "{words}: {message}");
        let config = config(&format!("validation_share = 0.0\n{lines}")).found_at(folder.path());
        let looked = Dataset::look(&config, &Tokenizer::Bytes, cache.path()).unwrap();
        let found: Vec<String> = looked.defects().refused.iter().map(ToString::to_string).collect();
        assert_eq!(found, [message], "a look finds the same");
    }
}

#[test]
fn other_labels_of_the_same_images_are_noticed() {
    let (folder, cache) = (Folder::new(), Folder::new());
    let mut labels = fixture("labels-idx1-ubyte");
    folder.write("images", fixture("images-idx3-ubyte"));
    folder.write("labels", &labels);
    let lines = format!("{IDX}\nsources = [{{ path = \"images\", format = \"idx\", labels = \"labels\" }}]");
    let open = || images(&open_at(folder.path(), &cache, &lines, &Work::default()).unwrap());
    let before = open();
    labels[8] = 2;
    folder.write("labels", &labels);
    let after = open();
    assert_eq!((before[0].1, after[0].1), (0, 2));
    assert_eq!(before[1..], after[1..]);
}

#[test]
fn a_class_of_an_archive_may_have_a_byte_order_mark() {
    let (image, folder) = (fixture("folder/triangle/02.png"), Folder::new());
    let open = |[class, json]: [&str; 2]| {
        let files: [(&str, &[u8]); 4] =
            [("1.png", &image), ("1.cls", class.as_bytes()), ("2.png", &image), ("2.json", json.as_bytes())];
        folder.write("a.tar", tar(&files));
        images(&open(folder.path(), &format!("{SMALL}\nsources = [{{ path = \"a.tar\" }}]")).unwrap())
    };
    let plain = open(["1\r\n", "{\"label\": 0}"]);
    assert_eq!(open(["\u{feff}1\r\n", "\u{feff}{\"label\": 0}"]), plain);
    assert_eq!(plain.iter().map(|(_, class)| *class).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn samples_of_an_archive_without_an_image_or_a_class_are_bad_records() {
    let (image, folder) = (fixture("folder/triangle/02.png"), Folder::new());
    let files: [(&str, &[u8]); 14] = [
        ("1.png", &image),
        ("1.cls", b"1\n"),
        ("2.png", &image),
        ("3.cls", b"1"),
        ("4.png", &image),
        ("4.cls", b"one"),
        ("5.png", &image),
        ("5.json", b"{\"label\": \"one\"}"),
        ("6.png", &image[..40]),
        ("6.cls", b"0"),
        ("7.png", &image),
        ("7.json", b"no JSON"),
        ("8.png", &image),
        ("8.json", &[b' '; (1 << 20) + 1]),
    ];
    folder.write("a.tar", tar(&files));
    let lines = format!("bad_records_max = 7\n{SMALL}\nsources = [{{ path = \"a.tar\" }}]");
    let data = open(folder.path(), &lines).unwrap();
    let found = data.sources().remove(0).size.bad.examples.join("; ");
    for words in [
        "a.tar, sample 2: it has neither .cls nor .json",
        "sample 3: it has no .jpg",
        "sample 4: its .cls is no number of a class: one",
        "sample 5: its .json has no number of a class in `label`",
        "a.tar, sample 6: ",
        "sample 7: its .json is none",
        "sample 8: its .json has more than 1048576 bytes",
    ] {
        assert!(found.contains(words), "{words}: {found}");
    }
    // The image before the truncated one takes its place.
    let all = images(&data);
    assert_eq!((all.len(), &all[0]), (2, &all[1]));
    let message = open(folder.path(), &lines.replace("= 7", "= 6")).unwrap_err().to_string();
    assert!(message.contains("7 records") && message.contains("bad_records_max = 6"), "{message}");
}

#[test]
fn an_archive_that_is_cut_is_refused_with_its_place_and_a_class_beyond_those_stops_the_preparation() {
    let (image, folder) = (fixture("folder/triangle/02.png"), Folder::new());
    let whole = tar(&[("k/1.png", &image), ("k/1.cls", b"1"), ("k/2.png", &image), ("k/2.cls", b"2")]);
    folder.write("a.tar", &whole);
    let lines = format!("bad_records_max = 9\n{SMALL}\nsources = [{{ path = \"a.tar\" }}]");
    let message = open(folder.path(), &lines).unwrap_err().to_string();
    assert!(message.contains("a.tar, sample k/2 is of class 2, and data.image.classes = 2"), "{message}");
    folder.write("a.tar", &whole[..whole.len() - 2048]);
    let message = open(folder.path(), &lines.replace("classes = 2", "classes = 3")).unwrap_err().to_string();
    assert!(message.contains("webdataset (behind sample k/1): it is cut off there"), "{message}");
    folder.write("a.tar", "no archive".repeat(100));
    let message = open(folder.path(), &lines).unwrap_err().to_string();
    assert!(
        message.contains("webdataset (its beginning): ") && message.contains("no tar archive"),
        "{message}"
    );
}

#[test]
fn damaged_shards_of_images_are_found_and_made_again() {
    let cache = Folder::new();
    let open = || open_at(&fixtures(), &cache, &format!("{RGB}\n{SHARDS}"), &Work::default()).unwrap();
    let whole = images(&open());
    let mut shards: Vec<_> = std::fs::read_dir(cache.path().join("data/shards"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    shards.sort();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
    for turn in 0..40 {
        let victim = &shards[random.random_range(0..shards.len())];
        let mut bytes = std::fs::read(victim).unwrap();
        let at = random.random_range(0..bytes.len());
        bytes[at] ^= 1 << random.random_range(0..8);
        std::fs::remove_file(victim).unwrap();
        std::fs::write(victim, bytes).unwrap();
        match turn % 2 {
            0 => assert!(images(&open()) == whole, "turn {turn}, byte {at}"),
            _ => assert_eq!(open().verify(|_| {}).unwrap(), 1, "turn {turn}, byte {at}"),
        }
        assert_eq!(open().verify(|_| {}).unwrap(), 0, "turn {turn}, byte {at}");
    }
}

#[test]
fn damaged_files_of_images_are_decoded_or_refused_and_nothing_else() {
    let shape = config(&format!("{RGB}\n{FOLDER}")).image.unwrap();
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(4);
    let mut refused = 0;
    for name in ["circle/00.jpg", "square/01.jpg", "square/04.png", "triangle/02.png", "triangle/11.png"] {
        let whole = fixture(&format!("folder/{name}"));
        for _ in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            let (content, mut sample) = (Pixels::Encoded(bytes), Vec::new());
            let image = RawImage { place: name.to_owned(), class: 0, content };
            match decode(image, &shape, &mut sample) {
                Ok(()) => assert_eq!(sample.len(), 3 * 16 * 20 + 2, "{name}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 150, "{refused}");
}

/// `torchvision.datasets.ImageFolder` accepts the first two, and `z.webp`, which is not supported here.
#[test]
fn what_a_folder_of_images_has_is_read_wherever_it_is_in_its_class_or_named() {
    let folder = two_classes();
    std::fs::create_dir_all(folder.path().join("a/sub/deep")).unwrap();
    folder.write("a/sub/deep/y.png", fixture("folder/triangle/05.png"));
    folder.write("a/notes.txt", "nothing to it");
    folder.write("a/.DS_Store", "a tool's own");
    folder.write("README.md", "nothing to it");
    let lines = format!("{SMALL}\n{HERE}");
    let data = open(folder.path(), &lines).unwrap();
    assert_eq!(data.samples(), 4);
    let passed = data.sources()[0].size.passed.to_string();
    assert!(passed.starts_with("3 passed over: 1 hidden (") && passed.contains("2 no images ("), "{passed}");
    for (name, words) in
        [("a/z.webp", "1 image that is not read"), ("outside.png", "in no folder of a class")]
    {
        folder.write(name, fixture("folder/triangle/05.png"));
        let message = open(folder.path(), &lines).unwrap_err().to_string();
        assert!(message.contains(words) && message.contains(name), "{message}");
        let data = open(folder.path(), &format!("strict_files = false\n{lines}")).unwrap();
        assert_eq!((data.samples(), data.sources()[0].size.passed.count()), (4, 4));
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
}

/// The `webdataset` library skips them silently.
#[test]
fn resource_forks_in_an_archive_are_named_and_tear_no_sample() {
    let png = fixture("folder/triangle/05.png");
    let folder = Folder::new();
    let files: [(&str, &[u8]); 7] = [
        ("d/._a.png", b"fork"),
        ("d/a.png", &png),
        ("d/._a.cls", b"fork"),
        ("d/a.cls", b"0"),
        ("d/._b.png", b"fork"),
        ("d/b.png", &png),
        ("d/b.cls", b"1"),
    ];
    folder.write("a.tar", tar(&files));
    let open = |max: u64| {
        open(folder.path(), &format!("bad_records_max = {max}\n{SMALL}\nsources = [{{ path = \"a.tar\" }}]"))
    };
    let message = open(2).unwrap_err().to_string();
    assert!(
        message.contains("3 records") && message.contains("a.tar, d/._a.png and 2 more: what macOS"),
        "{message}"
    );
    assert!(message.contains("COPYFILE_DISABLE=1"), "{message}");
    let data = open(3).unwrap();
    let size = data.sources().remove(0).size;
    assert_eq!((size.records, size.bad.count), (2, 3));
    assert_eq!(images(&data).iter().map(|(_, class)| *class).collect::<Vec<_>>(), [0, 1]);
}

/// A folder without an image of a class is refused.
#[test]
fn classes_without_an_image_are_told_of_archives_and_of_idx_files() {
    let png = fixture("folder/triangle/05.png");
    let folder = Folder::new();
    folder.write("a.tar", tar(&[("a.png", &png), ("a.cls", b"1"), ("b.png", &png), ("b.cls", b"3")]));
    folder.write("images", fixture("images-idx3-ubyte"));
    folder.write("labels", fixture("labels-idx1-ubyte"));
    let cache = Folder::new();
    let told = |shape: &str, source: &str| {
        let lines = format!("{shape}\nsources = [{{ {source} }}]");
        let data = open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
        data.sources().remove(0).size.empty_classes
    };
    let shape = |classes: u32| SMALL.replace("classes = 2", &format!("classes = {classes}"));
    // From the file, then from the prepared data.
    for _ in 0..2 {
        assert_eq!(told(&shape(4), "path = \"a.tar\"").to_string(), "classes 0, 2 have no sample");
    }
    let idx = "path = \"images\", format = \"idx\", labels = \"labels\"";
    assert_eq!(told(IDX, idx).count(), 0);
    let more = IDX.replace("classes = 3", "classes = 10");
    assert_eq!(told(&more, idx).to_string(), "classes 3, 4, 5, 6, 7 and 2 more have no sample");
}

/// The `webdataset` library raises an error for a repeated name, and cuts names at their first point.
#[test]
fn samples_of_an_archive_that_are_there_twice_or_cut_otherwise_are_named() {
    let [png, jpg] = ["folder/triangle/05.png", "folder/circle/00.jpg"].map(fixture);
    for (files, words) in [
        (
            vec![("a.png", &png[..]), ("a.cls", b"0"), ("a.png", &png), ("a.cls", b"1")],
            "sample a: a.png is there twice",
        ),
        (
            vec![("a.png", &png), ("a.cls", b"0"), ("a.jpg", &jpg)],
            "sample a: a.jpg is there twice, or is one of two images",
        ),
        (vec![("a.png", &png), ("a.cls", b"0"), ("a.cls", b"0")], "sample a: a.cls is there twice"),
        (
            vec![("22.05.png", &png), ("22.05.cls", b"0")],
            "sample 22: it has no .jpg, .jpeg or .png: it has .05.png, .05.cls",
        ),
        (
            vec![("d/1.left.png", &png), ("d/1.cls", b"0")],
            "sample d/1: it has no .jpg, .jpeg or .png: it has .left.png",
        ),
        (
            vec![("d/__info__.json", b"{\"n\": 1}"), ("a.png", &png), ("a.cls", b"0")],
            "sample d/__info__: it has no image, and a name that begins with `__`, as a file about the archive",
        ),
        (
            vec![("a.png", &png), ("a.label.cls", b"0")],
            "sample a: it has neither .cls nor .json: it has .label.cls",
        ),
    ] {
        let folder = Folder::new();
        folder.write("a.tar", tar(&files));
        let message = open(folder.path(), &format!("{SMALL}\nsources = [{{ path = \"a.tar\" }}]"))
            .unwrap_err()
            .to_string();
        assert!(message.contains(words), "{message}");
    }
}
