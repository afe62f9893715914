//! Archives with contradicting, repeated or torn samples.

use super::*;

const SOURCE: &str = "sources = [{ path = \"a.tar\" }]";

fn read(files: &[(&str, &[u8])], source: &str) -> Result<Vec<u32>, String> {
    let folder = Folder::new();
    folder.write("a.tar", tar(files));
    let data = open(folder.path(), &format!("{SMALL}\n{source}")).map_err(|error| error.to_string())?;
    Ok(images(&data).into_iter().map(|(_, class)| class).collect())
}

#[test]
fn a_class_that_json_contradicts_is_a_bad_record_and_one_that_it_repeats_is_not() {
    let image = fixture("folder/triangle/02.png");
    for (class, json, expected) in [
        ("1", r#"{"label": 0}"#, Err("its .cls says class 1, and its .json has 0 in `label`")),
        ("0\n", r#"{"caption": "a circle", "label": 1}"#, Err("says class 0, and its .json has 1 in")),
        ("1", r#"{"label": -1}"#, Err("its .json has -1 in `label`")),
        ("1", r#"{"label": 1.5}"#, Err("its .json has 1.5 in `label`")),
        ("1", r#"{"label": 1, "label": 0}"#, Err("its .json has two fields `label`")),
        ("one", r#"{"label": 1}"#, Err("its .cls is no number of a class: one")),
        ("1", r#"{"label": 1}"#, Ok(1)),
        ("1\n", r#"{"label": 1.0, "n": NaN}"#, Ok(1)),
        ("0", r#"{"label": "1"}"#, Err("its .cls says class 0, and its .json has \"1\" in `label`: mend")),
        ("1", r#"{"label": " 0.0"}"#, Err("its .json has \" 0.0\" in `label`")),
        ("1", r#"{"label": "-1"}"#, Err("its .json has \"-1\" in `label`")),
        ("1", r#"{"label": "1\n"}"#, Ok(1)),
        ("1", r#"{"label": "1.0"}"#, Ok(1)),
        ("1", r#"{"label": "one"}"#, Ok(1)),
        ("1", r#"{"label": "n0144"}"#, Ok(1)),
        ("1", r#"{"label": "nan"}"#, Ok(1)),
        ("1.0", r#"{"n": 1}"#, Err("its .cls is no number of a class: 1.0 (an integer from 0 is one)")),
        ("1", r#"{"label": "a dog"}"#, Ok(1)),
        ("0", r#"{"caption": "a dog", "width": 7}"#, Ok(0)),
        ("1", "[0]", Ok(1)),
        ("1", "no JSON", Ok(1)),
    ] {
        let [class, json] = [class, json].map(str::as_bytes);
        for files in [
            [("d/7.png", &image[..]), ("d/7.cls", class), ("d/7.json", json)],
            [("d/7.json", json), ("d/7.png", &image[..]), ("d/7.cls", class)],
        ] {
            match (read(&files, SOURCE), expected) {
                (Ok(found), Ok(class)) => assert_eq!(found, [class], "{json:?}"),
                (Err(message), Err(words)) => {
                    assert!(message.contains("a.tar, sample d/7: ") && message.contains(words), "{message}");
                }
                (found, _) => panic!("{found:?} and not {expected:?}"),
            }
        }
    }
    let files: [(&str, &[u8]); 3] =
        [("7.png", &image), ("7.cls", b"0"), ("7.json", br#"{"label": 1, "kind": 0}"#)];
    let message = read(&files, SOURCE).unwrap_err();
    assert!(message.contains("or leave it out, or say with `field` which counts: the name of"), "{message}");
    assert_eq!(read(&files, "sources = [{ path = \"a.tar\", field = \"kind\" }]"), Ok(vec![0]));
    let message = read(&[("7.png", &image), ("7.json", br#"{"label": 0, "label": 0}"#)], SOURCE).unwrap_err();
    assert!(message.contains("sample 7: its .json has two fields `label`"), "{message}");
}

#[test]
fn a_field_that_is_named_decides_alone() {
    let image = fixture("folder/triangle/02.png");
    let none = "its .json has no number of a class in `";
    for (field, class, json, expected) in [
        ("label", "1", r#"{"label": 0}"#, Ok(0)),
        ("label", "0\n", r#"{"label": 1, "n": 7}"#, Ok(1)),
        ("kind", "0", r#"{"label": 1, "kind": 1}"#, Ok(1)),
        ("kind", "1", r#"{"label": 0, "kind": 1}"#, Ok(1)),
        ("label", "none", r#"{"label": 1}"#, Ok(1)),
        ("cls", "1", r#"{"label": 0}"#, Ok(1)),
        ("cls", "1", "no JSON", Ok(1)),
        ("cls", "1", r#"{"cls": 1}"#, Ok(1)),
        ("cls", "0", r#"{"cls": 1}"#, Err("its .cls says class 0, and its .json has 1 in `cls`")),
        ("y", "1", r#"{"y": "1"}"#, Err("in `y`: \"1\" is a text: write the number without quotes")),
        ("y", "1", r#"{"y": "a dog"}"#, Err("in `y`: \"a dog\" is a text: write the number of its class")),
        ("y", "1", r#"{"y": null}"#, Err("in `y`: it is null")),
        ("y", "1", r#"{"y": true}"#, Err("in `y`: true is a truth value")),
        ("y", "1", r#"{"y": 1.0}"#, Err("in `y`: 1.0 is a float: write it as an integer (1)")),
        ("y", "1", r#"{"y": [1]}"#, Err("in `y`: it has a list there")),
        ("y", "1", r#"{"y": {"a": 1}}"#, Err("in `y`: it has an object there")),
        ("y", "1", r#"{"y": 4294967296}"#, Err("in `y`: 4294967296 is none: a class is")),
        ("y", "1", r#"{"Y": 1, "n": 2}"#, Err("in `y`: its fields are Y, n; say with `field` which is the")),
        ("y", "1", "{}", Err("in `y`: its fields are none")),
        ("m.y", "1", r#"{"m": {"y": 1}}"#, Err("its fields are m; a field within `m` is not read: write it")),
        ("y", "1", "no JSON", Err("its .json is none: ")),
        ("y", "1", "[0]", Err("in `y`: it is no object")),
        ("label", "1", r#"{"label": -1}"#, Err("in `label`: -1 is none: a class is an integer from 0")),
        ("label", "1", r#"{"label": 0.5}"#, Err("in `label`: 0.5 is a float, and a class is")),
        ("label", "1", r#"{"label": 0, "label": 1}"#, Err("its .json has two fields `label`")),
        ("cls", "one", r#"{"label": 1}"#, Err("its .cls is no number of a class: one")),
    ] {
        let [class, json] = [class, json].map(str::as_bytes);
        let files = [("7.json", json), ("7.png", &image[..]), ("7.cls", class)];
        let source = format!("sources = [{{ path = \"a.tar\", field = \"{field}\" }}]");
        match (read(&files, &source), expected) {
            (Ok(found), Ok(class)) => assert_eq!(found, [class], "{field}, {json:?}"),
            (Err(message), Err(words)) => {
                assert!(message.contains("sample 7: ") && message.contains(words), "{message}");
                assert!(!words.starts_with("in ") || message.contains(none), "{message}");
            }
            (found, _) => panic!("{field}, {json:?}: {found:?} and not {expected:?}"),
        }
    }
}

/// One of two samples lacks the field, or both do.
#[test]
fn samples_without_the_named_field_are_bad_records_and_nothing_is_read_where_all_lack_it() {
    let image = fixture("folder/triangle/02.png");
    let files: [(&str, &[u8]); 8] = [
        ("1.png", &image),
        ("1.cls", b"0"),
        ("1.json", br#"{"y": 1}"#),
        ("2.png", &image),
        ("2.cls", b"0"),
        ("3.png", &image),
        ("3.cls", b"0"),
        ("3.json", br#"{"z": 1}"#),
    ];
    let source = |max: u64, field: &str| {
        format!("bad_records_max = {max}\nsources = [{{ path = \"a.tar\", field = \"{field}\" }}]")
    };
    assert_eq!(read(&files, &source(2, "y")), Ok(vec![1]));
    let message = read(&files, &source(1, "y")).unwrap_err();
    for words in [
        "2 records of a source cannot be read",
        "sample 2: it has no .json, and the source's `field` names \"y\" of it as the class: leave `field` out",
        "sample 3: its .json has no number of a class in `y`: its fields are z; ",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    for max in [0, 99] {
        let message = read(&files, &source(max, "yy")).unwrap_err();
        assert!(message.contains("in `yy`: its fields are y; say with `field`"), "{message}");
    }
    let message = read(&files[2..4], &source(0, "cls")).unwrap_err();
    assert!(message.contains("sample 1: it has no .jpg"), "{message}");
    let message = read(&[files[0], ("1.txt", b"0")], &source(0, "cls")).unwrap_err();
    assert!(message.contains("it has no .cls, which the source's `field` names"), "{message}");
}

/// A list made without the field differs.
#[test]
fn a_field_that_is_named_later_decides_as_well() {
    let (image, folder, cache) = (fixture("folder/triangle/02.png"), Folder::new(), Folder::new());
    folder.write(
        "a.tar",
        tar(&[
            ("7.png", &image),
            ("7.cls", b"1"),
            ("7.json", br#"{"label": 0}"#),
            ("8.png", &image),
            ("8.cls", b"1"),
        ]),
    );
    for (keys, expected) in
        [("", vec![1]), (", field = \"label\"", vec![0]), (", field = \"cls\"", vec![1, 1])]
    {
        let lines = format!("{SMALL}\nbad_records_max = 1\nsources = [{{ path = \"a.tar\"{keys} }}]");
        let data = open_at(folder.path(), &cache, &lines, &Work::default()).unwrap();
        let found: Vec<u32> = images(&data).into_iter().map(|(_, class)| class).collect();
        assert_eq!(found, expected, "{keys}");
    }
}

#[test]
fn a_text_that_stands_beside_another_class_than_before_is_a_bad_record() {
    let image = fixture("folder/triangle/02.png");
    let samples = [("1", "cat"), ("0", "dog"), ("1", "cat"), ("0", "Cat"), ("0", "cat"), ("1", "dog")];
    let named: Vec<[(String, Vec<u8>); 3]> = (0..)
        .zip(samples)
        .map(|(key, (class, label)): (u32, _)| {
            let json = format!("{{\"label\": \"{label}\"}}");
            [("png", image.clone()), ("cls", class.into()), ("json", json.into())]
                .map(|(end, content): (&str, Vec<u8>)| (format!("{key}.{end}"), content))
        })
        .collect();
    let files: Vec<(&str, &[u8])> =
        named.iter().flatten().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    let message = read(&files, SOURCE).unwrap_err();
    for words in [
        "2 records of a source cannot be read",
        "a.tar, sample 4: its .cls says class 0, and its .json has \"cat\" in `label`, which stood beside class 1 further ahead: mend one",
        "a.tar, sample 5: its .cls says class 1, and its .json has \"dog\" in `label`, which stood beside class 0",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(read(&files, &format!("bad_records_max = 2\n{SOURCE}")), Ok(vec![1, 0, 1, 0]));
    let other = "sources = [{ path = \"a.tar\", field = \"cls\" }]";
    assert_eq!(read(&files, other), Ok(vec![1, 0, 1, 0, 0, 1]));
}

/// Output of `tar -r`: the `webdataset` library yields each file, but unpacking keeps the last of each name.
#[test]
fn a_name_that_comes_again_further_behind_is_a_bad_record_whatever_it_stands_for() {
    let [image, other] = ["folder/triangle/02.png", "folder/circle/00.jpg"].map(fixture);
    let first: [(&str, &[u8]); 4] =
        [("d/a.png", &image), ("d/a.cls", b"1"), ("d/b.png", &image), ("d/b.cls", b"0")];
    let last: [(&str, &[u8]); 2] = [("d/c.png", &image), ("d/c.cls", b"0")];
    for again in [
        vec![("d/a.png", &other[..]), ("d/a.cls", b"1")],
        vec![("d/a.png", &image), ("d/a.cls", b"1")],
        vec![("d/a.jpg", &other), ("d/a.json", br#"{"label": 0}"#)],
        vec![("d/a.png", &other)],
        vec![("d/a.cls", &b"0"[..])],
        vec![("d/a.txt", &b"a caption"[..])],
    ] {
        let files = [&first[..], &again, &last].concat();
        let message = read(&files, SOURCE).unwrap_err();
        assert!(message.contains("1 record of a source cannot be read"), "{message}");
        for words in ["a.tar, sample d/a: its name comes again", "(`tar --sort=name`)", "`tar --delete "] {
            assert!(message.contains(words), "{words}: {message}");
        }
        assert_eq!(read(&files, &format!("bad_records_max = 1\n{SOURCE}")), Ok(vec![1, 0, 0]));
    }
    let elsewhere: [(&str, &[u8]); 2] = [("e/a.png", &other), ("e/a.cls", b"1")];
    assert_eq!(read(&[&first[..], &elsewhere].concat(), SOURCE), Ok(vec![1, 0, 1]));
}

#[test]
fn a_class_that_there_is_not_is_found_without_a_preparation() {
    let (image, folder) = (fixture("folder/triangle/02.png"), Folder::new());
    let files: [(&str, &[u8]); 4] = [("0.png", &image), ("0.cls", b"1"), ("1.png", &image), ("1.cls", b"2")];
    let refused = |files: &[(&str, &[u8])]| {
        folder.write("a.tar", tar(files));
        let config = config(&format!("{SMALL}\n{SOURCE}")).found_at(folder.path());
        let cache = folder.path().join("cache");
        let defects = Dataset::look(&config, &Tokenizer::Bytes, &cache).unwrap().defects();
        defects.refused.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(refused(&files[..2]).is_empty());
    let messages = refused(&files);
    let message = messages.join("; ");
    assert_eq!(messages.len(), 1, "{message}");
    assert!(message.contains("a.tar, sample 1 is of class 2, and data.image.classes = 2"), "{message}");
}

#[test]
fn another_name_with_the_same_content_says_nothing_else() {
    let [image, other] = ["folder/circle/00.jpg", "folder/circle/03.jpg"].map(fixture);
    assert_ne!(image, other);
    for (files, is_taken) in [
        (vec![("a.jpg", &image[..]), ("a.jpeg", &image), ("a.cls", b"1")], true),
        (vec![("a.jpg", &image), ("a.cls", b"1"), ("a.CLS", b"1")], true),
        (vec![("a.jpg", &image), ("a.jpeg", &other), ("a.cls", b"1")], false),
        (vec![("a.jpg", &image), ("a.cls", b"1"), ("a.CLS", b"0")], false),
        (vec![("a.jpg", &image), ("a.jpg", &image), ("a.cls", b"1")], false),
    ] {
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        match read(&files, SOURCE) {
            Ok(classes) => assert!(is_taken && classes == [1], "{names:?}: {classes:?}"),
            Err(message) => assert!(!is_taken && message.contains("is there twice"), "{names:?}: {message}"),
        }
    }
}

/// Output of `tar cf a.tar *.png *.cls`.
#[test]
fn samples_whose_files_do_not_follow_each_other_are_named_with_what_helps() {
    let image = fixture("folder/triangle/02.png");
    let folder = Folder::new();
    let files: [(&str, &[u8]); 9] = [
        ("t/1.png", &image),
        ("t/2.png", &image),
        ("t/3.png", &image),
        ("t/4.png", &image),
        ("t/4.cls", b"1"),
        ("t/1.cls", b"0"),
        ("t/2.json", br#"{"label": 1}"#),
        ("t/5.cls", b"0"),
        ("t/notes.txt", b"of this folder"),
    ];
    folder.write("a.tar", tar(&files));
    let open = |max: u64| open(folder.path(), &format!("bad_records_max = {max}\n{SMALL}\n{SOURCE}"));
    let message = open(4).unwrap_err().to_string();
    for words in [
        "5 records of a source cannot be read",
        "a.tar, sample t/1: its files t/1.png and t/1.cls do not follow each other in the archive, ",
        "a.tar, sample t/2: its files t/2.png and t/2.json do not follow each other",
        "pack it anew in the order of names (`tar --sort=name`)",
        "a.tar, sample t/3: it has neither .cls nor .json",
        "a.tar, sample t/5: it has no .jpg",
        "a.tar, sample t/notes: it has no .jpg",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
    let data = open(5).unwrap();
    let size = data.sources().remove(0).size;
    assert_eq!((size.records, size.bad.count, images(&data)[0].1), (1, 5, 1));
}

#[test]
fn an_image_with_its_class_behind_another_point_of_its_name_is_a_bad_record() {
    let image = fixture("folder/triangle/02.png");
    let files: [(&str, &[u8]); 4] =
        [("a.cls", b"0"), ("a.png", &image), ("a.2.cls", b"1"), ("a.2.png", &image)];
    let message = read(&files, SOURCE).unwrap_err();
    assert!(message.contains("sample a: it has .2.png with a class beside it, too"), "{message}");
    // Other attributes of a sample do not count.
    let files: [(&str, &[u8]); 4] =
        [("a.cls", b"1"), ("a.png", &image), ("a.seg.png", &image), ("a.seg.txt", b"x")];
    assert_eq!(read(&files, SOURCE), Ok(vec![1]));
}

/// An archive left unclosed by its program: `webdataset` and Python's `tarfile` read it.
#[test]
fn an_archive_without_its_end_is_read_and_told_where_its_samples_are_whole() {
    let image = fixture("folder/triangle/02.png");
    let padded = 512 + image.len().next_multiple_of(512);
    let whole = tar(&[
        ("1.png", &image),
        ("1.cls", b"1"),
        ("2.cls", b"0"),
        ("2.png", &image),
        ("3.png", &image),
        ("3.json", b"{\"label\": 1}"),
    ]);
    let of = |bytes: &[u8]| {
        let folder = Folder::new();
        folder.write("a.tar", bytes);
        let data = open(folder.path(), &format!("bad_records_max = 9\n{SMALL}\n{SOURCE}"));
        data.map(|data| {
            let notes = data.sources().remove(0).size.notes;
            (images(&data).len(), notes.to_string().contains("1 archive has no mark of the end"))
        })
        .map_err(|error| error.to_string())
    };
    let [first, second] = [padded + 1024, 2 * (padded + 1024)];
    for (end, expected) in [
        (whole.len(), Ok((3, false))),
        (whole.len() - 512, Ok((3, false))),
        (whole.len() - 1024, Ok((3, true))),
        (second, Ok((2, true))),
        (first, Ok((1, true))),
        // Within a sample, a content, its padding, a header, and before any.
        (first - 1024, Err("(its beginning): it is cut off there")),
        (first + 1024, Err("it is cut off there")),
        (second + padded, Err("it is cut off there")),
        (second + 700, Err("it is cut off there: fetch it again")),
        (first - 1, Err("cut off there")),
        (first + 100, Err("cut off there")),
        (100, Err("(its beginning)")),
    ] {
        match (of(&whole[..end]), expected) {
            (Err(message), Err(words)) => assert!(message.contains(words), "{end}: {message}"),
            (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{end}"),
        }
    }
}

/// As a program writes them that leaves the names out, and macOS its own files.
#[test]
fn files_of_an_archive_without_a_key_are_no_sample_and_are_told() {
    let png = fixture("folder/triangle/05.png");
    let [a, b] = [("a", b"0"), ("b", b"1")]
        .map(|(key, class)| [(format!("{key}.png"), &png[..]), (format!("{key}.cls"), &class[..])]);
    let sample = |files: &'static [&'static str]| files.iter().map(|name| ((*name).to_owned(), &png[..]));
    for (keyless, count) in
        [(&[][..], 0), (&[".png", ".cls"], 2), (&[".png", ".png", ".DS_Store"], 3), (&["a.b/.png"], 1)]
    {
        // Before, within and behind samples.
        for at in 0..=4 {
            let mut files = [a.clone(), b.clone()].concat();
            files.splice(at..at, sample(keyless));
            let files: Vec<(&str, &[u8])> =
                files.iter().map(|(name, content)| (name.as_str(), *content)).collect();
            let folder = Folder::new();
            folder.write("a.tar", tar(&files));
            let data = open(folder.path(), &format!("{SMALL}\nsources = [{{ path = \"a.tar\" }}]")).unwrap();
            let size = data.sources().remove(0).size;
            assert_eq!((size.records, size.bad.count), (2, 0), "{keyless:?}, {at}");
            let told = size.notes.to_string();
            assert_eq!(told.is_empty(), count == 0, "{told}");
            if let Some(first) = keyless.first() {
                let verb = if count == 1 { "file of archives is" } else { "files of archives are" };
                assert!(told.starts_with(&format!("{count} {verb} passed over")), "{told}");
                assert!(told.contains(&format!("(the first: {first} of ")), "{told}");
            }
        }
    }
}
